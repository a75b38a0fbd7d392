package main

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxWaiting and maxBusy are how many connections may be open without a request and with one.
const maxWaiting, maxBusy = 512, 128

// clients closes the connection of a server that has waited for longest when there is one too many,
// and likewise the one whose request is the oldest. So clients that open connections and leave them
// do not keep others out.
type clients struct {
	mu sync.Mutex
	// waiting and busy are the connections without and with a request, oldest first; guarded by mu.
	waiting, busy []net.Conn
}

// note is for http.Server.ConnState.
func (c *clients) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := func(other net.Conn) bool { return other == conn }
	c.waiting, c.busy = slices.DeleteFunc(c.waiting, is), slices.DeleteFunc(c.busy, is)
	switch state {
	case http.StateNew, http.StateIdle:
		c.waiting = bounded(append(c.waiting, conn), maxWaiting)
	case http.StateActive:
		c.busy = bounded(append(c.busy, conn), maxBusy)
	default: // it is closed
	}
}

// bounded closes the first of the connections if they are too many, and returns the others.
func bounded(conns []net.Conn, most int) []net.Conn {
	if len(conns) <= most {
		return conns
	}
	_ = conns[0].Close()
	return slices.Delete(conns, 0, 1)
}
