package criserver

import (
	"net"
	"sync"
	"sync/atomic"
)

// gatedListener accepts connections, and can freeze or close all of them at once.
type gatedListener struct {
	net.Listener

	mu sync.Mutex
	// thawed is closed while the connections are not frozen. It is guarded by mu.
	thawed chan struct{}
	frozen bool                    // guarded by mu
	conns  map[*gatedConn]struct{} // guarded by mu
}

func newGatedListener(l net.Listener) *gatedListener {
	thawed := make(chan struct{})
	close(thawed)
	return &gatedListener{Listener: l, thawed: thawed, conns: make(map[*gatedConn]struct{})}
}

func (l *gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &gatedConn{Conn: conn, listener: l, closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return c, nil
}

func (l *gatedListener) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.frozen {
		l.frozen = true
		l.thawed = make(chan struct{})
	}
}

func (l *gatedListener) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen {
		l.frozen = false
		close(l.thawed)
	}
}

func (l *gatedListener) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thawed
}

// cut closes all connections abruptly.
func (l *gatedListener) cut() {
	l.mu.Lock()
	conns := make([]*gatedConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the kernel notifies the client
	}
}

// gatedConn is a connection whose reads and writes block while the listener is frozen.
type gatedConn struct {
	net.Conn
	listener *gatedListener
	once     sync.Once
	closed   chan struct{}
	called   atomic.Bool
}

// RemoteAddr returns an address that contains the connection. Without this, the connection could
// not be identified, because the client of a unix socket has an empty address.
func (c *gatedConn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

// connAddr is a client's address with its connection.
type connAddr struct {
	net.Addr
	conn *gatedConn
}

// isFirst returns true the first time that it is called for the connection.
func (c *gatedConn) isFirst() bool { return !c.called.Swap(true) }

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.wait()
	return c.Conn.Write(p)
}

func (c *gatedConn) wait() {
	select {
	case <-c.listener.gate():
	case <-c.closed:
	}
}

func (c *gatedConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.listener.mu.Lock()
		delete(c.listener.conns, c)
		c.listener.mu.Unlock()
	})
	return c.Conn.Close()
}
