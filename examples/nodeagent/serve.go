package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

const (
	// listenPeriod is how often an address is tried that another program has.
	listenPeriod = time.Second
	// maxConnections is how many there may be at a time: each is a file of the agent's.
	maxConnections = 64
)

// serve serves the pages of the node at an address until ctx ends. Every user can take the address before the agent
// does: then it is tried again, and the pods do not wait for it. began is called with each listener.
func serve(ctx context.Context, address string, pages http.Handler, began func(net.Listener), logger klog.Logger) {
	server := &http.Server{Handler: guarded(pages), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // there is nothing to be done about it
	var open atomic.Int32
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > maxConnections {
				_ = conn.Close()
			}
		case http.StateClosed:
			open.Add(-1)
		default:
		}
	}
	complained := false
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			complained = false
			began(listener)
			err = server.Serve(listener)
		}
		if ctx.Err() == nil && !complained {
			complained = true
			logger.Error(err, "The page of the node is not served; the address is tried again", "address", address)
		}
	}, listenPeriod)
}

// guarded answers only what the library's page of the node answers: requests of this machine that read. A page of
// another site cannot read the answer, not even if its name resolves to this machine: the Host header has that name.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			http.Error(w, "only GET and HEAD are answered", http.StatusMethodNotAllowed)
		case local == nil || !isLoopback(local.String()) || !isLoopback(r.RemoteAddr) || !isLoopback(r.Host):
			http.Error(w, "only requests of this machine are answered, by its loopback names", http.StatusForbidden)
		case crossSite(r):
			http.Error(w, "requests of another site's page are not answered", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// crossSite reports whether the page of another site makes a request. It may have a link here, for it cannot read where
// the link leads.
func crossSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	site := r.Header.Get("Sec-Fetch-Site")
	isLink := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return site != "" && site != "same-origin" && site != "none" && !isLink
}

// isLoopback reports whether a host, with a port or without, is this machine by a name that no other resolves.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
