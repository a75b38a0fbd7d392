package plegz_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// serve serves the handler with an agent's settings until stop is called.
func (n *node) serve() (l *pipeListener, stop func()) {
	return n.serveBy(&http.Server{ReadHeaderTimeout: 5 * time.Second})
}

// serveBy serves the handler with the given server until stop is called.
func (n *node) serveBy(server *http.Server) (l *pipeListener, stop func()) {
	l, server.Handler = newPipeListener(), n
	go func() { _ = server.Serve(l) }()
	return l, func() {
		_ = server.Close()
		time.Sleep(time.Second) // fake time, in which the server closes its last connections
		synctest.Wait()
	}
}

// ask sends a request, or the beginning of one, on a new connection.
func ask(t *testing.T, l *pipeListener, request string) net.Conn {
	t.Helper()
	c := l.dial()
	if _, err := io.WriteString(c, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	return c
}

// pipeListener is a listener for in-memory connections, whose deadlines use the synctest bubble's
// fake time.
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
	// The deadline ends a blocked test, because synctest detects no deadlock while a generator
	// runs.
	_ = client.SetDeadline(time.Now().Add(time.Hour))
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

// loopback makes a connection look as if it came from this machine.
type loopback struct{ net.Conn }

var loopbackAddress = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000}

func (loopback) RemoteAddr() net.Addr { return loopbackAddress }
func (loopback) LocalAddr() net.Addr  { return loopbackAddress }
