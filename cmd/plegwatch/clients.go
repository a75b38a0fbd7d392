package main

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxClients is how many connections the server has.
const maxClients = 128

// clients closes connections of a server so that there are at most maxClients: the one that has waited for
// longest without a request or, if all have one, the one whose request is the oldest. So clients that
// open connections and leave them cannot keep others out.
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
	case http.StateActive:
		c.busy = append(c.busy, conn)
	case http.StateNew, http.StateIdle:
		c.waiting = append(c.waiting, conn)
	default: // it is closed
		return
	}
	if len(c.waiting)+len(c.busy) <= maxClients {
		return
	}
	longest := &c.waiting
	if len(c.waiting) == 0 || len(c.waiting) == 1 && c.waiting[0] == conn {
		longest = &c.busy
	}
	_ = (*longest)[0].Close()
	*longest = slices.Delete(*longest, 0, 1)
}
