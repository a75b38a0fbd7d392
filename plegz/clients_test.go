package plegz_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
)

// The handler answers or refuses each of two hundred clients, and no client waits for another.
func TestManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		var streams []*stream
		for range 200 {
			streams = append(streams, n.open("/?format=stream", ""))
		}
		synctest.Wait()
		refused := 0
		for _, s := range streams {
			select {
			case code := <-s.status:
				refused++
				if code != http.StatusServiceUnavailable || s.header.Get("Retry-After") == "" {
					t.Errorf("%d %v", code, s.header)
				}
			default:
			}
		}
		if refused != 200-64 {
			t.Errorf("%d streams are refused", refused)
		}
		if got := n.subscribers(); got != 1 {
			t.Errorf("%d subscriptions", got)
		}
		// If the stream is refused, the page sends HEAD to find out why.
		head := func() int {
			r, w := request("/?format=stream"), httptest.NewRecorder()
			r.Method = http.MethodHead
			n.ServeHTTP(w, r)
			return w.Code
		}
		if code := head(); code != http.StatusServiceUnavailable {
			t.Errorf("HEAD beside the streams: %d", code)
		}
		for range 200 {
			if w := n.get("/"); w.Code != http.StatusOK {
				t.Errorf("beside the streams: %d", w.Code)
			}
		}
		n.ExitContainer(uid, "nginx", 0, "Completed")
		n.pass(time.Second)
		for _, s := range streams {
			s.end()
		}
		synctest.Wait()
		if code := head(); code != http.StatusOK {
			t.Errorf("HEAD after the streams: %d", code)
		}
		if s := n.open("/?format=stream", ""); !first(t, s).Full {
			t.Error("none is free after they have ended")
		}
	})
}

// A client that reads nothing is disconnected after ten seconds. It does not delay other clients.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPod("shop", "web", plegtest.Running("nginx"))
		n.pass(time.Second)
		for _, format := range []string{"stream", "json", "text", "html"} {
			l, stop := n.serve()
			client := ask(t, l, "GET /?format="+format+" HTTP/1.1\nHost: localhost\n\n")
			n.pass(9 * time.Second)
			other := n.open("/?format=stream", "")
			if !first(t, other).Full {
				t.Errorf("%s: a slow client delays another", format)
			}
			other.end()
			n.pass(2 * time.Second)
			// Before it closed the connection, the server may have written bytes that are still in
			// the pipe.
			if _, err := io.Copy(io.Discard, client); err != nil {
				t.Errorf("%s: the connection is not closed: %v", format, err)
			}
			stop()
		}
	})
}

// Clients that send a request slowly, or never finish its body, are refused. Other clients are
// still answered.
func TestSlowRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		request string
		code    int // 0 if no answer is expected
	}{
		"no request":           {"", 0},
		"half a request line":  {"GET /?format=js", 0},
		"headers without end":  {"GET / HTTP/1.1\nHost: localhost\nX: ", 0},
		"a body never sent":    {"GET /?format=json HTTP/1.1\nHost: localhost\nContent-Length: 10\n\n", 413},
		"half a body":          {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 10\n\nabc", 413},
		"a large body":         {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 10000000000\n\n", 413},
		"chunks without end":   {"GET / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n", 413},
		"a body for a stream":  {"GET /?format=stream HTTP/1.1\nHost: localhost\nContent-Length: 10\n\n", 413},
		"a body on request":    {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 10\nExpect: 100-continue\n\n", 413},
		"a body that is empty": {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n", 200},
		"POST":                 {"POST / HTTP/1.1\nHost: localhost\nContent-Length: 10\n\n", 405},
		"a refused host":       {"GET / HTTP/1.1\nHost: evil.example\n\n", 403},
		"two hosts":            {"GET / HTTP/1.1\nHost: localhost\nHost: evil.example\n\n", 400},
		"a host in the target": {"GET http://evil.example/ HTTP/1.1\nHost: localhost\n\n", 403},
		"a long query": {"GET /?" + strings.Repeat("format=json&", 5000) + " HTTP/1.1\nHost: localhost\n\n",
			414},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				l, stop := n.serve()
				var clients []net.Conn
				// The handler answers at most 64 requests at once. So if it must answer all
				// requests, there are only ten.
				for range map[bool]int{false: 100, true: 10}[tt.code == 200] {
					clients = append(clients, ask(t, l, tt.request))
				}
				if tt.code == 0 {
					n.pass(6 * time.Second)
				}
				for _, c := range clients {
					began := time.Now()
					response, err := http.ReadResponse(bufio.NewReader(c), nil)
					if tt.code != 0 && err != nil {
						t.Fatal(err)
					}
					if err == nil && tt.code != 0 && response.StatusCode != tt.code {
						t.Errorf("%d, want %d", response.StatusCode, tt.code)
					}
					if took := time.Since(began); took > 0 {
						t.Errorf("the answer takes %v", took)
					}
				}
				if w := n.get("/"); w.Code != http.StatusOK {
					t.Errorf("another client gets %d", w.Code)
				}
				for _, c := range clients {
					_ = c.Close()
				}
				stop()
			})
		})
	}
}

// A client that reads an answer too slowly is disconnected after a minute, even if it never stops
// reading.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(1000)
		l, stop := n.serve()
		c := ask(t, l, "GET /?format=json HTTP/1.1\nHost: localhost\n\n")
		began, taken := time.Now(), 0
		for b := make([]byte, 64<<10); ; {
			read, err := io.ReadFull(c, b)
			taken += read
			if err != nil {
				break
			}
			time.Sleep(9 * time.Second) // fake time
		}
		if took := time.Since(began); took < 30*time.Second || took > 70*time.Second {
			t.Errorf("disconnected after %v and %d bytes", took, taken)
		}
		stop()
	})
}

// Clients that read nothing cost less than 100 KiB each, because they share the bytes of the
// answer.
func TestClientMemory(t *testing.T) {
	for _, format := range []string{"stream", "json", "text", "html"} {
		t.Run(format, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.setPods(1000)
				size := n.get("/?format=" + strings.ReplaceAll(format, "stream", "json")).Body.Len()
				l, stop := n.serve()
				before := heapInUse()
				var clients []net.Conn
				answered := 0
				for range 200 {
					c := ask(t, l, "GET /?format="+format+" HTTP/1.1\nHost: localhost\n\n")
					// A client that receives the headers and a part of the body counts as answered.
					beginning := make([]byte, 1000)
					_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
					if _, err := io.ReadFull(c, beginning); err == nil && bytes.Contains(beginning, []byte(" 200 OK")) {
						answered++
					}
					clients = append(clients, c)
				}
				synctest.Wait()
				each := (heapInUse() - before) / max(1, answered)
				t.Logf("%d bytes for each of %d clients of an answer of %d", each, answered, size)
				if limit := 100 << 10; each > limit || answered != 64 || format == "json" && size < 4*limit {
					t.Errorf("%d bytes for each of %d clients of an answer of %d", each, answered, size)
				}
				n.pass(11 * time.Second)
				for _, c := range clients {
					_ = c.Close()
				}
				stop()
				if w := n.get("/"); w.Code != http.StatusOK {
					t.Errorf("afterwards: %d", w.Code)
				}
			})
		})
	}
}
