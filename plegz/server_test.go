package plegz_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
)

// Two hundred clients are answered or refused, and nobody waits for them.
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
		if s := n.open("/?format=stream", ""); !first(t, s).Full {
			t.Error("none is free after they have ended")
		}
	})
}

// A client that reads nothing is disconnected after ten seconds, and delays nobody.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPod("shop", "web", plegtest.Running("nginx"))
		n.pass(time.Second)
		for _, format := range []string{"stream", "json", "text", "html"} {
			l := newPipeListener()
			server := &http.Server{Handler: n, ReadHeaderTimeout: time.Second}
			go func() { _ = server.Serve(l) }()
			client := l.dial()
			if _, err := io.WriteString(client, "GET /?format="+format+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			n.pass(9 * time.Second)
			other := n.open("/?format=stream", "")
			if !first(t, other).Full {
				t.Errorf("%s: a slow client delays another", format)
			}
			other.end()
			n.pass(2 * time.Second)
			// What is left in the pipe is what the server had written when it gave up.
			if _, err := io.Copy(io.Discard, client); err != nil {
				t.Errorf("%s: the connection is not closed: %v", format, err)
			}
			_ = server.Close()
			synctest.Wait()
		}
	})
}

// A stream over HTTP, read as a browser does.
func TestStreamOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		l := newPipeListener()
		server := &http.Server{Handler: n, ReadHeaderTimeout: time.Second}
		go func() { _ = server.Serve(l) }()
		client := l.dial()
		_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
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
		_ = server.Close()
		synctest.Wait()
	})
}

// A stream goes on however short the server's timeouts are.
func TestStreamOutlivesTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		l := newPipeListener()
		server := &http.Server{Handler: n, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
		go func() { _ = server.Serve(l) }()
		client := l.dial()
		_, _ = io.WriteString(client, "GET /?format=stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
		began, lines := time.Now(), bufio.NewScanner(client)
		for time.Since(began) < time.Minute && lines.Scan() {
			continue
		}
		if open := time.Since(began); open < time.Minute {
			t.Errorf("the stream ends after %v", open)
		}
		_ = client.Close()
		_ = server.Close()
		synctest.Wait()
	})
}

// pipeListener is a listener without a network, whose connections have the bubble's time.
type pipeListener struct {
	connections chan net.Conn
	closed      context.Context
	close       context.CancelFunc
}

func newPipeListener() *pipeListener {
	ctx, cancel := context.WithCancel(context.Background())
	return &pipeListener{make(chan net.Conn), ctx, cancel}
}

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	_ = client.SetDeadline(time.Now().Add(time.Hour)) // of the bubble; a generator never lets it rest
	l.connections <- loopback{server}
	return client
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.close(); return nil }
func (l *pipeListener) Addr() net.Addr { return loopbackAddress }

// loopback is a connection that says that it comes from this machine.
type loopback struct{ net.Conn }

var loopbackAddress = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000}

func (loopback) RemoteAddr() net.Addr { return loopbackAddress }
func (loopback) LocalAddr() net.Addr  { return loopbackAddress }
