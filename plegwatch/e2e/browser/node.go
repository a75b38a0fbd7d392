package browser

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/go-logr/logr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegz"
)

// Node is a simulated node. A generator watches it, and Page serves plegz's page.
type Node struct {
	*criserver.Server
	Generator *pleg.GenericPLEG
	Page      *httptest.Server

	stop []func()
}

// StartNode starts a node without pods. wrap, which may be nil, wraps the page's handler. opts are
// options for the connection to the runtime.
func StartNode(wrap func(http.Handler) http.Handler, opts ...cri.Option) (*Node, error) {
	n := &Node{}
	server, err := criserver.Start(criserver.WithVersion("simulated-containerd", "v2.4.2"))
	if err != nil {
		return nil, fmt.Errorf("starting a node: %w", err)
	}
	n.Server = server
	n.stop = append(n.stop, server.Stop)
	runtime, err := cri.Connect(context.Background(), server.Endpoint(), opts...)
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("connecting to the node: %w", err)
	}
	n.stop = append(n.stop, func() { _ = runtime.Close() })
	n.Generator = pleg.New(runtime,
		pleg.WithLogger(logr.Discard()))
	n.Generator.Start(context.Background())
	n.stop = append(n.stop, n.Generator.Stop)
	handler := plegz.Handler(n.Generator, plegz.WithNodeName("node-7"),
		plegz.WithVersion("plegwatch v0.1.0"), plegz.WithLinks("/metrics", "/healthz"))
	if wrap != nil {
		handler = wrap(handler)
	}
	n.Page = httptest.NewServer(handler)
	n.stop = append(n.stop, func() {
		n.Page.CloseClientConnections()
		n.Page.Close()
	})
	return n, nil
}

// Close stops the server, the generator and the page.
func (n *Node) Close() {
	for i := len(n.stop) - 1; i >= 0; i-- {
		n.stop[i]()
	}
}

// Run starts a container in a new pod and returns the container's ID.
func (n *Node) Run(namespace, name, container string) (id string, err error) {
	sandbox := n.RunPod(criserver.PodConfig{Namespace: namespace, Name: name})
	return n.RunContainer(sandbox, criserver.ContainerConfig{Name: container})
}
