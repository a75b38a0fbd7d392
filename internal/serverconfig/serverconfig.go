// Package serverconfig configures and operates the CRI server of package criserver in ways that
// only this repository's own tests and programs need.
package serverconfig

import (
	"time"

	"k8s.io/utils/clock"
)

// Config configures a server; see With. A zero field means the default.
type Config struct {
	// Clock is the clock for times and delays. The default is the real clock.
	Clock clock.Clock
	// ListBatch is the number of items in a message of a streaming list. The default is 5000, as in
	// containerd 2.4.
	ListBatch int
	// MaxSend is the size limit of an answer in bytes. If an answer is larger, the call fails with
	// ResourceExhausted. The default is no limit.
	MaxSend int
	// PlainLists makes the server answer Unimplemented to StreamPodSandboxes and
	// StreamContainers, as older runtimes do.
	PlainLists bool
	// EncodedLists makes the server encode a list without a filter only once after each change.
	// Until the next change, the server answers with the same bytes, in the same order. So the
	// server takes only a small part of a benchmark's time.
	EncodedLists bool
	// EventBuffer is the number of events that fit into each reader's buffer, or into the one
	// buffer of all readers. The default is the model's number.
	EventBuffer int
	// BareEvents makes the server send events without the statuses of the sandbox and its
	// containers.
	BareEvents bool
	// NoTaskExits makes a model of containerd answer Unimplemented to clients that subscribe to
	// its own events.
	NoTaskExits bool
	// ExitFiles is an existing folder. The models of CRI-O write a file into it for each container
	// that exits, as conmon does, even while the server is down. The name of the file is the
	// container's ID, and the content is the exit code. Unlike CRI-O, the models do not remove the
	// file.
	ExitFiles string
}

// With returns the option that sets the Config of a server. O is criserver.Option, which this
// package cannot import.
func With[O any](c Config) O { return NewOption(c).(O) }

// NewOption returns the option for With. Package criserver sets this variable.
var NewOption func(Config) any

// Of returns the controls of a *criserver.Server. Package criserver sets this variable.
var Of func(server any) Controls

// Controls are methods that a server offers in addition to its exported methods.
type Controls interface {
	// InFlight returns how many calls of an RPC are in flight. If method is empty, it counts the
	// calls of all RPCs. An open stream is a call in flight.
	InFlight(method string) int
	// ResetCalls makes Server.Calls start from zero.
	ResetCalls()

	// OOMKill kills a process of a running container because the container has used up its memory.
	// The killed process is not the container's first process. The reason of the container's later
	// exit will be "OOMKilled", whatever the exit code. containerd shows that reason at once, while
	// the container still runs.
	OOMKill(containerID string) error

	// EventStats returns the counts of the events so far.
	EventStats() EventStats
	// RepeatEvents sends the latest events again, unchanged, oldest first. The parameter count is
	// their number. At most 1000 events are available.
	RepeatEvents(count int)
	// ShuffleEvents makes the server collect events. When the number of events reaches the
	// parameter window, the server sends them in random order. If window is 0, the server sends
	// the collected events, and later events in order. With a window of 2, a container's stop is
	// often reported before its start, as by CRI-O for a container that exits at once.
	ShuffleEvents(window int)

	// SendTaskExit reports an exit that the caller made up. The exit may not have happened yet, may
	// have been reported before, or may be of a container that does not exist. Only clients that
	// have already subscribed receive it.
	SendTaskExit(e TaskExit)
	// TaskExitReaders returns how many clients have subscribed to exits and will receive each
	// further exit. If a client has just opened the stream, it may not be counted yet.
	TaskExitReaders() int
}

// EventStats counts what happened to the CRI server's container events.
type EventStats struct {
	// Readers is how many event streams are open. If the client of a stream is gone, the stream
	// stays open until the next event for it.
	Readers int
	// Sent counts the events that were put into a reader's buffer or handed to a reader. An event
	// for two readers counts twice.
	Sent int
	// Held is how many events wait for a reader.
	Held int
	// Dropped counts the events that were lost because a buffer was full, because no
	// reader came in time, or because the runtime was down.
	Dropped int
	// LongestEnqueue is the longest time, by the server's clock, that an operation of the server
	// waited until its event was in every reader's buffer. An operation that is still waiting
	// counts too.
	LongestEnqueue time.Duration
}

// TaskExit is the end of a process, as containerd reports it in its own stream of events. The
// models of containerd report the end of each container, sandbox and command. The report comes
// before the end appears in lists, statuses and CRI's events. While a model is down, it reports no
// ends.
type TaskExit struct {
	// ContainerID is the ID of the container or sandbox.
	ContainerID string
	// ID is the ID of the process: ContainerID for the container's first process, another ID for a
	// command in the container. SendTaskExit replaces an empty ID by ContainerID.
	ID string
	// PID is the process's PID. SendTaskExit replaces 0 by the container's default PID, which the
	// first process has unless the container's configuration sets another PID.
	PID uint32
	// ExitCode is the exit code.
	ExitCode uint32
	// ExitedAt is when the process exited. SendTaskExit replaces the zero time by the current time.
	ExitedAt time.Time
}
