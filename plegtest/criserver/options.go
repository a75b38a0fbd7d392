package criserver

import (
	"cmp"
	"net"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/serverconfig"
)

// Option is an option of Start. A nil Option is ignored.
type Option func(c *config)

type config struct {
	habits
	own           serverconfig.Config
	versionSet    bool
	name, version string
	programs      map[string]Program // nil for a read-only server
	listen        func() (net.Listener, error)
}

// WithModel selects the runtime that the server imitates. The default is Containerd2.
func WithModel(m Model) Option {
	return func(c *config) { c.habits = m.habits() }
}

// WithVersion sets the runtime's name and version in the answer to Version. The default values are
// the model's.
func WithVersion(runtimeName, runtimeVersion string) Option {
	return func(c *config) { c.versionSet, c.name, c.version = true, runtimeName, runtimeVersion }
}

// WithListener makes the server call listen instead of creating a socket. With a bufconn of package
// google.golang.org/grpc/test/bufconn, the server and its clients can run in a testing/synctest
// bubble. Each call of Up calls listen, also while clients dial. Endpoint returns "". A client passes
// a dialer to cri.Dial, as in the example; any path will do.
func WithListener(listen func() (net.Listener, error)) Option {
	return func(c *config) { c.listen = listen }
}

func newConfig(opts []Option) config {
	c := config{habits: Containerd2.habits()}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.versionSet {
		c.habits.name, c.habits.version = c.name, c.version
	}
	c.streamingLists = c.streamingLists && !c.own.PlainLists
	c.eventBuffer = cmp.Or(c.own.EventBuffer, c.eventBuffer)
	c.own.Clock = cmp.Or[clock.Clock](c.own.Clock, clock.RealClock{})
	c.own.ListBatch = cmp.Or(c.own.ListBatch, 5000)
	return c
}
