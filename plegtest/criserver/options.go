package criserver

import (
	"cmp"
	"net"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/serverconfig"
)

// Option is an option of Start.
type Option func(c *config)

type config struct {
	habits
	clock         clock.Clock
	own           serverconfig.Config
	versionSet    bool
	name, version string
	noExitEvents  bool
	exitsDir      string
	programs      map[string]Program // nil if the server is read-only
	listen        func() (net.Listener, error)
}

// WithClock sets the clock for times, delays and timetables. The default is the real clock.
func WithClock(c clock.Clock) Option {
	return func(cfg *config) { cfg.clock = c }
}

// WithModel sets the runtime that the server imitates. The default is Containerd2.
func WithModel(m Model) Option {
	return func(c *config) { c.habits = m.habits() }
}

// WithVersion sets the runtime's name and version, the answer to Version. The default is
// that of the model.
func WithVersion(runtimeName, runtimeVersion string) Option {
	return func(c *config) { c.versionSet, c.name, c.version = true, runtimeName, runtimeVersion }
}

// WithConfig is for tests of this module: the package of its argument is internal.
func WithConfig(own serverconfig.Config) Option {
	return func(c *config) { c.own = own }
}

// WithoutExitEvents makes a model of containerd answer Unimplemented to subscriptions to its own
// events.
func WithoutExitEvents() Option {
	return func(c *config) { c.noExitEvents = true }
}

// WithExitFiles makes the models of CRI-O write exit files into a directory, which must exist. Like
// conmon's, a file has the container's ID as its name, contains the exit code, and is written even
// while the server is down. Unlike CRI-O, the server does not remove it.
func WithExitFiles(dir string) Option {
	return func(c *config) { c.exitsDir = dir }
}

// WithListener makes the server use the caller's listener instead of a socket. With
// google.golang.org/grpc/test/bufconn, the server and its clients can run in a testing/synctest
// bubble. Start and every Up call the function. Endpoint is empty.
func WithListener(listen func() (net.Listener, error)) Option {
	return func(c *config) { c.listen = listen }
}

func newConfig(opts []Option) config {
	c := config{habits: Containerd2.habits(), clock: clock.RealClock{}}
	for _, opt := range opts {
		opt(&c)
	}
	if c.versionSet {
		c.habits.name, c.habits.version = c.name, c.version
	}
	c.streamingLists = c.streamingLists && !c.own.PlainLists
	c.eventBuffer = cmp.Or(c.own.EventBuffer, c.eventBuffer)
	c.own.Seed, c.own.ListBatch = cmp.Or(c.own.Seed, 1), cmp.Or(c.own.ListBatch, 5000)
	return c
}
