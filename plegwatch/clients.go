package main

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// maxWaiting limits the open connections without a request, maxBusy those with a request.
	maxWaiting, maxBusy = 512, 128
	// sendGrace is the time that every new connection gets to send its first request.
	sendGrace = 100 * time.Millisecond
)

// clients closes a server's oldest connection when too many are open. Clients that keep connections
// idle, or that never read, therefore cannot lock out other clients.
type clients struct {
	mu   sync.Mutex
	open []*client // ordered by time of acceptance; guarded by mu
}

type client struct {
	conn     net.Conn
	accepted time.Time
	busy     bool // true while the server handles a request
}

// note is the ConnState function of an http.Server. The server calls it for each change of a
// connection.
func (c *clients) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.open, func(o *client) bool { return o.conn == conn })
	switch {
	case state == http.StateNew:
		c.open = append(c.open, &client{conn: conn, accepted: time.Now()})
		if first := c.excessLocked(false); first != nil {
			// The server accepts no further connection until this call of note returns.
			c.mu.Unlock()
			time.Sleep(time.Until(first.accepted.Add(sendGrace)))
			c.mu.Lock()
		}
		c.closeExcessLocked(false)
	case i < 0: // the connection is closed already
	case state == http.StateActive, state == http.StateIdle:
		c.open[i].busy = state == http.StateActive
		c.closeExcessLocked(c.open[i].busy)
	default:
		c.open = slices.Delete(c.open, i, i+1)
	}
}

// excessLocked checks the busy connections or, if busy is false, the waiting connections. If there
// are too many, it returns the oldest of them. Otherwise it returns nil.
func (c *clients) excessLocked(busy bool) (first *client) {
	n, most := 0, maxWaiting
	if busy {
		most = maxBusy
	}
	for _, o := range c.open {
		if o.busy != busy {
			continue
		}
		if n++; n == 1 {
			first = o
		}
	}
	if n <= most {
		return nil
	}
	return first
}

func (c *clients) closeExcessLocked(busy bool) {
	if first := c.excessLocked(busy); first != nil {
		_ = first.conn.Close()
		c.open = slices.DeleteFunc(c.open, func(o *client) bool { return o == first })
	}
}
