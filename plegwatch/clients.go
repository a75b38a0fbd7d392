package main

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// maxWaiting and maxBusy bound the open connections without a request, and with one.
	maxWaiting, maxBusy = 512, 128
	// sendGrace is how long a connection always has to send its first request.
	sendGrace = 100 * time.Millisecond
)

// clients closes the oldest connection of a server when there are too many. So clients
// that leave connections idle, or never read, cannot lock out others.
type clients struct {
	mu   sync.Mutex
	open []*client // in the order in which they were accepted; guarded by mu
}

type client struct {
	conn     net.Conn
	accepted time.Time
	busy     bool // true while there is a request
}

// note is the ConnState function of an http.Server.
func (c *clients) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.open, func(o *client) bool { return o.conn == conn })
	switch {
	case state == http.StateNew:
		c.open = append(c.open, &client{conn: conn, accepted: time.Now()})
		if first := c.excessLocked(false); first != nil {
			// The server accepts no other connection until note returns.
			c.mu.Unlock()
			time.Sleep(time.Until(first.accepted.Add(sendGrace)))
			c.mu.Lock()
		}
		c.closeExcessLocked(false)
	case i < 0: // it is closed already
	case state == http.StateActive, state == http.StateIdle:
		c.open[i].busy = state == http.StateActive
		c.closeExcessLocked(c.open[i].busy)
	default:
		c.open = slices.Delete(c.open, i, i+1)
	}
}

// excessLocked returns the oldest connection with or without a request, if there are too many of its kind.
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
