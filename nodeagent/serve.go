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

// If another program has the address, the agent tries again every listenPeriod. Each connection takes an open file.
const listenPeriod, maxConnections = 5 * time.Second, 64

// serve serves the pages of the node at an address until ctx ends, to requests of this machine. Any user's program may
// take the address first: then serve tries again, and the pods do not wait for it.
func serve(ctx context.Context, address string, pages http.Handler, out io.Writer, logger klog.Logger) {
	server := &http.Server{Handler: plegz.Guard(pages), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // there is nothing to be done about it
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
