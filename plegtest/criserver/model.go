package criserver

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Model is the runtime that the CRI server imitates: its answer to Version, whether it streams
// lists, how it delivers events, and other differences between runtimes. The end-to-end tests
// compare Containerd2 and CRIO with the real runtimes, call by call.
type Model int

const (
	// Containerd2 is containerd 2.4, the default. Events are broadcast to all readers. Each reader
	// has a buffer of 100; while it is full, the server's own operations wait for the reader. While
	// there is no reader, events are held for five minutes, and the next reader gets them first.
	// The server notices that a reader is gone at the next event, which is lost. Each further event
	// is lost with probability ½; otherwise the queue notices too, and holds it. The last event of
	// a sandbox comes before the sandbox disappears from the list. Like every containerd, it also
	// has its own stream of events, which reports exits before CRI shows them.
	Containerd2 Model = iota
	// Containerd17 is containerd 1.7. There is one stream with a buffer of 1000; while it is full,
	// events are dropped. Each event goes to only one of the readers. A call whose reader is gone
	// lasts until it gets an event, which is lost. Lists cannot be streamed.
	Containerd17
	// Containerd16 is containerd 1.6: it answers Unimplemented for events and for streaming lists,
	// and NotFound if the object to stop does not exist. It knows the exit codes of containers that
	// exited while it was down.
	Containerd16
	// CRIO is CRI-O 1.37 with enable_pod_events. One sender reads a channel of 1000 events and
	// sends each to all readers in turn, so one blocked reader stops all. While the channel is
	// full, events are dropped. The channel keeps events until the first reader comes; later,
	// events without a reader are lost.
	//
	// RemovePodSandbox sends no event for the objects that it removes. A container that is stopped
	// before it was started has exited with code 2, at a time before 1970. Each further stop of an
	// exited container sets a new finish time. A stopped sandbox keeps its address. A container's
	// creation time in lists is earlier than in its status, and changes when the runtime restarts.
	// When containers are removed or their sandbox is stopped, they have 10 s to end. A connection
	// whose first call has another content-type than application/grpc is closed.
	CRIO
	// CRIOWithoutEvents is CRIO in its default configuration: it ends every event stream
	// at once, without an error.
	CRIOWithoutEvents
)

// habits are the behaviour of a model.
type habits struct {
	name, version  string
	crio           bool       // as documented at CRIO, but for events
	missingIsError bool       // stopping a missing object is an error
	refusal        codes.Code // of a container in a stopped sandbox
	knowsExits     bool       // even exits during an outage
	streamingLists bool
	events         eventHabit
	eventBuffer    int
	holdEventsFor  time.Duration // while there is no reader
	deletedFirst   bool          // a sandbox's last event comes before it leaves the list
}

type eventHabit int

const (
	eventsUnimplemented eventHabit = iota
	eventsEndAtOnce
	eventsShared    // one buffer for all readers; each event to one of them; drops when full
	eventsInTurn    // one buffer; one sender sends each event to all readers; drops when full
	eventsBroadcast // a buffer per reader; the operation waits when full
)

func (m Model) habits() habits {
	switch m {
	case Containerd16:
		return habits{name: "containerd", version: "v1.6.36", refusal: codes.NotFound, missingIsError: true,
			knowsExits: true, events: eventsUnimplemented}
	case Containerd17:
		return habits{name: "containerd", version: "v1.7.35", refusal: codes.NotFound, events: eventsShared,
			eventBuffer: 1000}
	case CRIO:
		return habits{name: "cri-o", version: "1.37.0", crio: true, refusal: codes.Unknown, knowsExits: true,
			streamingLists: true, events: eventsInTurn, eventBuffer: 1000}
	case CRIOWithoutEvents:
		return habits{name: "cri-o", version: "1.37.0", crio: true, refusal: codes.Unknown, knowsExits: true,
			streamingLists: true, events: eventsEndAtOnce}
	case Containerd2:
	}
	return habits{name: "containerd", version: "v2.4.2", refusal: codes.Unknown, streamingLists: true,
		events: eventsBroadcast, eventBuffer: 100, holdEventsFor: 5 * time.Minute, deletedFirst: true}
}
