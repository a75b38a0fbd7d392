// Package serverconfig configures and operates the CRI server of package criserver in ways that
// only this repository's own tests and programs need.
package serverconfig

import (
	"time"

	"k8s.io/utils/clock"
)

// Config configures a server; see With. A zero field leaves the default.
type Config struct {
	// Clock is the clock for times and delays. The default is the real clock.
	Clock clock.Clock
	// ListBatch is how many items a message of a streaming list holds. The default is 5000,
	// as in containerd 2.4.
	ListBatch int
	// MaxSend is the size of the largest answer in bytes; longer ones fail with ResourceExhausted. The
	// default is no limit.
	MaxSend int
	// PlainLists makes the server answer Unimplemented to StreamPodSandboxes and
	// StreamContainers, as older runtimes do.
	PlainLists bool
	// EncodedLists makes the server encode a list without a filter once per change. Until the next
	// change, it answers with the same bytes, in the same order. The server then costs little in a
	// benchmark.
	EncodedLists bool
	// EventBuffer is how many events each reader's buffer holds, or the runtime's one buffer. The
	// default is the model's.
	EventBuffer int
	// BareEvents makes the server send events without the statuses of the sandbox and its
	// containers.
	BareEvents bool
	// NoTaskExits makes a model of containerd answer Unimplemented to clients that subscribe to
	// its own events.
	NoTaskExits bool
	// ExitFiles is a folder, which must exist. The models of CRI-O write a file into it for each
	// container that exits, as conmon does, even while the server is down. The name is the ID, and
	// the content is the exit code. Unlike CRI-O, they do not remove it.
	ExitFiles string
}

// With returns the option that gives a server its Config. O is criserver.Option, which this package
// cannot import.
func With[O any](c Config) O { return NewOption(c).(O) }

// NewOption makes the option. Package criserver sets it.
var NewOption func(Config) any

// Of returns the controls of a *criserver.Server. Package criserver sets it.
var Of func(server any) Controls

// Controls are methods of a server besides its exported ones.
type Controls interface {
	// InFlight returns how many calls of an RPC are in flight; the empty method counts all
	// RPCs. An open stream is a call in flight.
	InFlight(method string) int
	// ResetCalls makes Server.Calls start from zero.
	ResetCalls()

	// OOMKill kills a process of a running container, but not its first one, because the container
	// has used up its memory. Its exit will have the reason "OOMKilled", whatever the exit code.
	// containerd shows that reason from now on, while the container runs.
	OOMKill(containerID string) error

	// EventStats returns the counts of the events so far.
	EventStats() EventStats
	// RepeatEvents sends the last count events again, unchanged, oldest first. At most 1000
	// events are available.
	RepeatEvents(count int)
	// ShuffleEvents collects events until there are window of them, and then sends them in random
	// order. 0 sends the collected events and turns shuffling off. With a window of 2, a
	// container's stop is often reported before its start, as CRI-O does for a container that exits
	// at once.
	ShuffleEvents(window int)

	// SendTaskExit reports an exit that the caller made up: earlier than it comes, twice, or of
	// a container that does not exist. Only present subscribers get it.
	SendTaskExit(e TaskExit)
	// TaskExitReaders returns how many clients have subscribed to exits and get each further one. A
	// client that has just opened the stream may not be among them yet.
	TaskExitReaders() int
}

// EventStats counts what happened to the CRI server's container events.
type EventStats struct {
	// Readers is how many event streams are open. A stream whose client is gone stays
	// open until there is an event for it.
	Readers int
	// Sent counts the events that were put into a reader's buffer, or handed to it,
	// once for each reader.
	Sent int
	// Held is how many events wait for a first reader.
	Held int
	// Dropped counts the events that were lost because a buffer was full, because no
	// reader came in time, or because the runtime was down.
	Dropped int
	// LongestEnqueue is the longest time, by the server's clock, that an operation of
	// the server waited until its event was in every reader's buffer. An operation that
	// is waiting at present counts.
	LongestEnqueue time.Duration
}

// TaskExit is the end of a process, as containerd reports it in its own stream of events. The
// models of containerd report the end of each container, sandbox and command before lists,
// statuses and CRI's events show it; while they are down they report none.
type TaskExit struct {
	// ContainerID is the container or sandbox.
	ContainerID string
	// ID is the process: ContainerID for the container's first process, another ID for a command in
	// the container. SendTaskExit reads an empty ID as ContainerID.
	ID string
	// PID is the process's PID. SendTaskExit reads 0 as the PID of the container's first process.
	PID uint32
	// ExitCode is the exit code.
	ExitCode uint32
	// ExitedAt is when the process exited. SendTaskExit reads the zero time as now.
	ExitedAt time.Time
}
