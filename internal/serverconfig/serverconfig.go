// Package serverconfig configures the CRI server of package criserver in ways that only this
// repository's own tests and benchmarks need.
package serverconfig

// Config is given to a server with criserver.WithConfig. A zero field leaves the default.
type Config struct {
	// Seed is the seed of all random values: IDs, the order of lists, and the jitter of
	// timetables. The default is 1.
	Seed uint64
	// ListBatch is how many items a message of a streaming list holds. The default is 5000,
	// as in containerd 2.4.
	ListBatch int
	// PlainLists makes the server answer Unimplemented to StreamPodSandboxes and
	// StreamContainers, as older runtimes do.
	PlainLists bool
	// EncodedLists makes the server encode a list without a filter once per change, and answer
	// with the same bytes, in the same order, until the next change. The server then costs
	// little in a benchmark.
	EncodedLists bool
	// EventBuffer is how many events the buffer of a reader holds, or the one of the runtime.
	// The default is that of the model.
	EventBuffer int
	// BareEvents makes the server send events without the statuses of the sandbox and its
	// containers.
	BareEvents bool
}
