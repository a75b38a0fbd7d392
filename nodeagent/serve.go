package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/plegz"
)

// listenPeriod is how often the agent tries to listen on an address that another program uses.
// maxConnections limits the page's connections, because each connection uses an open file.
const listenPeriod, maxConnections = 5 * time.Second, 64

// serve serves the node's pages at an address until ctx ends. It answers only requests from this
// machine. If another program uses the address, serve tries again every listenPeriod. The pods run
// in the meantime.
func serve(ctx context.Context, address string, pages http.Handler, out io.Writer, logger klog.Logger) {
	server := &http.Server{Handler: plegz.Guard(pages), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // nothing can be done about an error
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			fmt.Fprintf(out, "The node's page is http://%s/; /pods, /healthz, /metrics.\n", listener.Addr())
			err = server.Serve(netutil.LimitListener(listener, maxConnections))
		}
		if ctx.Err() == nil {
			logger.Error(err, "The page of the node is not served; the address is tried again", "address", address)
		}
	}, listenPeriod)
}
