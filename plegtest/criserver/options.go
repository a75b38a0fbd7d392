package criserver

import (
	"net"

	"k8s.io/utils/clock"
)

// Option is an option of Start.
type Option func(c *config)

type config struct {
	habits
	clock         clock.Clock
	seed          uint64
	listBatch     int
	bareEvents    bool
	encodedLists  bool
	versionSet    bool
	name, version string
	noStreams     bool
	noExitEvents  bool
	exitsDir      string
	buffer        int
	programs      map[string]Program // nil if the server is read-only
	listen        func() (net.Listener, error)
}

// WithClock sets the clock for times, delays and timetables. The default is the real clock.
func WithClock(c clock.Clock) Option {
	return func(cfg *config) { cfg.clock = c }
}

// WithModel sets the runtime that the server behaves like. The default is Containerd2.
func WithModel(m Model) Option {
	return func(c *config) { c.habits = m.habits() }
}

// WithVersion sets the runtime's name and version, the answer to Version. The default is
// that of the model.
func WithVersion(runtimeName, runtimeVersion string) Option {
	return func(c *config) { c.versionSet, c.name, c.version = true, runtimeName, runtimeVersion }
}

// WithSeed sets the seed of all random values: IDs, the order of lists, and the jitter of
// timetables. The default is 1.
func WithSeed(seed uint64) Option {
	return func(c *config) { c.seed = seed }
}

// WithoutStreamingLists makes the server answer Unimplemented to StreamPodSandboxes and
// StreamContainers, as older runtimes do.
func WithoutStreamingLists() Option {
	return func(c *config) { c.noStreams = true }
}

// WithListBatch sets how many items a message of a streaming list holds. The default is
// 5000, as in containerd 2.4.
func WithListBatch(items int) Option {
	return func(c *config) { c.listBatch = max(1, items) }
}

// WithEncodedLists makes the server encode a list without a filter once per change, and
// answer with the same bytes until the next change. The server then costs little in a
// benchmark. The order of the list stays the same until the next change.
func WithEncodedLists() Option {
	return func(c *config) { c.encodedLists = true }
}

// WithEventBuffer sets how many events the buffer of a reader holds, or the one of the
// runtime. The default is that of the model.
func WithEventBuffer(events int) Option {
	return func(c *config) { c.buffer = max(1, events) }
}

// WithoutSandboxInEvents makes the server send events without the statuses of the
// sandbox and its containers.
func WithoutSandboxInEvents() Option {
	return func(c *config) { c.bareEvents = true }
}

// WithoutExitEvents makes a model of containerd answer Unimplemented to who subscribes to its
// own events.
func WithoutExitEvents() Option {
	return func(c *config) { c.noExitEvents = true }
}

// WithExitFiles has the models of CRI-O write a file into a folder, which must exist, for each
// container that exits, as conmon does, also while the server is down: its name is the ID, and
// the exit code is in it. Unlike CRI-O, they do not remove it.
func WithExitFiles(dir string) Option {
	return func(c *config) { c.exitsDir = dir }
}

// WithListener makes the server listen with a function of the caller instead of on a socket,
// so that it and its clients can run in a testing/synctest bubble, over a bufconn of package
// google.golang.org/grpc/test/bufconn. Up calls the function each time. Endpoint is empty.
func WithListener(listen func() (net.Listener, error)) Option {
	return func(c *config) { c.listen = listen }
}

func newConfig(opts []Option) config {
	c := config{habits: Containerd2.habits(), clock: clock.RealClock{}, seed: 1, listBatch: 5000}
	for _, opt := range opts {
		opt(&c)
	}
	if c.versionSet {
		c.habits.name, c.habits.version = c.name, c.version
	}
	if c.noStreams {
		c.streamingLists = false
	}
	if c.buffer > 0 {
		c.eventBuffer = c.buffer
	}
	return c
}
