package plegz_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
)

// After its first message, a stream receives only changes. It keeps the recording running, even
// across a Stop and a Start.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		for i := range 3 {
			n.setPod("shop", fmt.Sprint("other-", i), plegtest.Running(fmt.Sprint("other-", i)))
		}
		n.pass(time.Second)
		s := n.open("/?format=stream", "")
		synctest.Wait()
		first := message(t, s)
		if !first.Full || len(first.Pods) != 4 || s.header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("first: %+v, %v", first, s.header)
		}
		n.pass(20 * time.Minute)
		drain(s)
		n.ExitContainer(uid, "nginx", 137, "OOMKilled")
		n.pass(300 * time.Millisecond) // a death must be sent within a second
		var died bool
		for len(s.messages) > 0 {
			m := message(t, s)
			if m.Full || len(m.Pods) > 1 || len(m.Samples) > 1 {
				t.Errorf("not only what has changed: %+v", m)
			}
			for _, e := range m.Events {
				died = died || e.Event == "ContainerDied" && e.Reason == "OOMKilled"
			}
		}
		if !died {
			t.Error("no death within 300 ms")
		}
		n.g.Stop()
		n.g.Start(t.Context())
		n.pass(2 * time.Second)
		drain(s)
		n.RemovePod(uid)
		n.pass(2 * time.Second)
		var removed bool
		for len(s.messages) > 0 {
			for _, p := range message(t, s).Pods {
				removed = removed || p.Name == "web" && p.State == "removed" && *p.Containers[0].ExitCode == 137
			}
		}
		if !removed {
			t.Error("nothing after Stop and Start")
		}
		n.g.Stop()
		synctest.Wait()
		if got := n.subscribers(); got != 1 {
			t.Errorf("%d subscribers while a stream is open", got)
		}
		s.end()
		synctest.Wait()
		if got := n.subscribers(); got != 0 {
			t.Errorf("%d subscribers after the last stream", got)
		}
	})
}

// A client that reconnects receives the changes since its position, or the whole state if its
// position is unknown.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		web := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.setPod("shop", "db", plegtest.Running("postgres"))
		n.pass(time.Second)
		s := n.open("/?format=stream", "")
		synctest.Wait()
		last := message(t, s)
		s.end()
		n.ExitContainer(web, "nginx", 1, "Error")
		n.pass(5 * time.Second)
		for _, resumed := range []*stream{
			n.open("/?format=stream", last.Position), n.open("/?format=stream&since="+last.Position, ""),
		} {
			synctest.Wait()
			m := message(t, resumed)
			if m.Full || len(m.Pods) != 1 || m.Pods[0].Name != "web" || len(m.Events) != 1 || len(m.Samples) != 5 {
				t.Errorf("resumed: %+v", m)
			}
		}
		for _, unknown := range []string{"x", "x.1", ".", last.Position + "0000", "-1", strings.Repeat("9", 1000),
			strings.Split(last.Position, ".")[0] + ".-1"} {
			resumed := n.open("/?format=stream", unknown)
			synctest.Wait()
			if m := message(t, resumed); !m.Full || len(m.Pods) != 2 {
				t.Errorf("position %.20q: %+v", unknown, m)
			}
		}
	})
}

// If the response writer cannot flush, the handler answers 501.
func TestStreamNeedsFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		w := httptest.NewRecorder()
		n.ServeHTTP(struct{ http.ResponseWriter }{w}, request("/?format=stream"))
		if w.Code != http.StatusNotImplemented {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A stream works over HTTP for a client that reads as a browser does.
func TestStreamOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		l, stop := n.serve()
		client := ask(t, l, "GET / HTTP/1.1\nHost: localhost\nAccept: text/event-stream\n\n")
		response, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		lines := bufio.NewScanner(response.Body)
		for _, prefix := range []string{"retry: ", "id: ", "data: {", ""} {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), prefix) {
				t.Errorf("%q, want %q", lines.Text(), prefix)
			}
		}
		_ = client.Close()
		stop()
	})
}

// A stream continues after the server's read and write timeouts.
func TestStreamOutlivesTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		l, stop := n.serveBy(&http.Server{ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second})
		client := ask(t, l, "GET /?format=stream HTTP/1.1\nHost: localhost\n\n")
		began, lines := time.Now(), bufio.NewScanner(client)
		for time.Since(began) < time.Minute && lines.Scan() {
			continue
		}
		if open := time.Since(began); open < time.Minute {
			t.Errorf("the stream ends after %v", open)
		}
		_ = client.Close()
		stop()
	})
}
