package plegtest

import "k8s.io/utils/clock"

// CRIOption is an option of StartCRIServer.
type CRIOption interface {
	applyToServer(c *criConfig)
}

type criConfig struct {
	habits
	clock         clock.Clock
	seed          uint64
	listBatch     int
	bareEvents    bool
	encodedLists  bool
	versionSet    bool
	name, version string
	noStreams     bool
	buffer        int
}

type criOption func(c *criConfig)

func (o criOption) applyToServer(c *criConfig) { o(c) }

// WithModel sets the runtime whose habits the server has. The default is
// Containerd2.
func WithModel(m CRIModel) CRIOption {
	return criOption(func(c *criConfig) { c.habits = m.habits() })
}

// WithVersion sets the name and the version of the runtime that Version answers.
// The default is that of the model.
func WithVersion(runtimeName, runtimeVersion string) CRIOption {
	return criOption(func(c *criConfig) { c.versionSet, c.name, c.version = true, runtimeName, runtimeVersion })
}

// WithSeed sets the seed of everything random: IDs, the order of lists, and the
// jitter of timetables. The default is 1.
func WithSeed(seed uint64) CRIOption {
	return criOption(func(c *criConfig) { c.seed = seed })
}

// WithoutStreamingLists makes StreamPodSandboxes and StreamContainers answer
// Unimplemented, as runtimes older than the model do.
func WithoutStreamingLists() CRIOption {
	return criOption(func(c *criConfig) { c.noStreams = true })
}

// WithListBatch sets how many items a message of a streaming list holds. The
// default is 5000, as in containerd 2.4.
func WithListBatch(items int) CRIOption {
	return criOption(func(c *criConfig) { c.listBatch = max(1, items) })
}

// WithEncodedLists makes lists without a filter be encoded once per change and
// then answered from those bytes, so that in a benchmark the server costs next to
// nothing. They come in the same order until something changes.
func WithEncodedLists() CRIOption {
	return criOption(func(c *criConfig) { c.encodedLists = true })
}

// WithEventBuffer sets how many events wait for a reader. The default is that of
// the model.
func WithEventBuffer(events int) CRIOption {
	return criOption(func(c *criConfig) { c.buffer = max(1, events) })
}

// WithoutSandboxInEvents makes events carry no status of their sandbox, nor of its
// containers.
func WithoutSandboxInEvents() CRIOption {
	return criOption(func(c *criConfig) { c.bareEvents = true })
}

func newCRIConfig(opts []CRIOption) criConfig {
	c := criConfig{habits: Containerd2.habits(), clock: clock.RealClock{}, seed: 1, listBatch: 5000}
	for _, opt := range opts {
		opt.applyToServer(&c)
	}
	if c.versionSet {
		c.habits.name, c.habits.version = c.name, c.version
	}
	if c.noStreams {
		c.streamingLists = false
	}
	if c.buffer > 0 {
		c.eventBuffer = c.buffer
		if c.holdEventsAtMax > 0 {
			c.holdEventsAtMax = c.buffer
		}
	}
	return c
}
