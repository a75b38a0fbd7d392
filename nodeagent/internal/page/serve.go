package page

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/plegz"
)

// listenPeriod is how often the agent tries to listen on an address that another program uses.
const listenPeriod = 5 * time.Second

// A client must send its request within readTimeout and read the answer within writeTimeout. The
// streams of the library's page set their own deadlines.
const readTimeout, writeTimeout = 10 * time.Second, 20 * time.Second

// MaxConnections limits the open connections, because each connection uses an open file. A
// connection stays open for at least connectionGrace.
const MaxConnections, connectionGrace = 64, 100 * time.Millisecond

// Serve serves the node's pages at an address until ctx ends. It answers only requests from this
// machine. If another program uses the address, Serve tries again every listenPeriod. The pods run
// in the meantime.
func Serve(ctx context.Context, address string, pages http.Handler, out io.Writer, logger klog.Logger) {
	server := &http.Server{
		Handler: plegz.Guard(pages), ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: readTimeout,
		MaxHeaderBytes: 16 << 10, ConnState: new(connections).note,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // nothing can be done about an error
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			fmt.Fprintf(out, "The node's page is http://%s/; /pods, /healthz, /metrics.\n", listener.Addr())
			err = server.Serve(listener)
		}
		if ctx.Err() == nil {
			logger.Error(err, "The page of the node is not served; the address is tried again", "address", address)
		}
	}, listenPeriod)
}

// connections closes a server's oldest connection when more than MaxConnections are open. Clients
// that do not read, or keep streams open, therefore cannot lock out other clients.
type connections struct {
	mu   sync.Mutex
	open []connection // ordered by time of acceptance; guarded by mu
}

type connection struct {
	net.Conn
	accepted time.Time
}

// note is the ConnState function of an http.Server. The server calls it for each change of a
// connection, and accepts no further connection while it handles a new one.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open = append(c.open, connection{conn, time.Now()})
	case http.StateClosed, http.StateHijacked:
		c.open = slices.DeleteFunc(c.open, func(o connection) bool { return o.Conn == conn })
	default: // a request begins or ends
	}
	for state == http.StateNew && len(c.open) > MaxConnections {
		oldest := c.open[0]
		if wait := time.Until(oldest.accepted.Add(connectionGrace)); wait > 0 {
			c.mu.Unlock()
			time.Sleep(wait)
			c.mu.Lock()
			continue // a connection may have closed
		}
		c.open = c.open[1:]
		_ = oldest.Close()
	}
}
