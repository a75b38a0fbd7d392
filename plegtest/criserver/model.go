package criserver

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Model selects the runtime that the CRI server imitates. Runtimes differ, for example, in their
// answer to Version, their streaming lists and their delivery of events. The end-to-end tests
// compare Containerd2 and CRIO with the real runtimes, call by call.
type Model int

const (
	// Containerd2 is containerd 2.4, the default. It broadcasts events to all readers. Each reader
	// has a buffer of 100 events. While a buffer is full, the server's own operations wait for the
	// reader. While no reader is connected, events are held for five minutes, and the next reader
	// receives them first.
	//
	// The server notices a disconnected reader only at the next event, which is lost. Each further
	// event is lost with probability ½. If an event is not lost, the queue notices the
	// disconnection and holds the events.
	//
	// The last event of a sandbox comes before the sandbox disappears from the list. Like every
	// containerd, the server also offers containerd's own event stream. That stream reports exits
	// before CRI shows them.
	Containerd2 Model = iota
	// Containerd17 is containerd 1.7. All readers share one buffer of 1000 events, and only one of
	// them receives each event. While the buffer is full, events are dropped. The call of a
	// disconnected reader lasts until the server sends one more event to that reader. That event is
	// lost. Lists cannot be streamed.
	Containerd17
	// Containerd16 is containerd 1.6. It answers Unimplemented to requests for events and streaming
	// lists. It answers NotFound if the object to stop does not exist. It knows the exit codes of
	// containers that exited while it was down.
	Containerd16
	// CRIO is CRI-O 1.37 with enable_pod_events. One sender reads a channel of 1000 events and
	// sends each event to all readers in turn. So one blocked reader blocks the events of all
	// readers. While the channel is full, events are dropped. The channel keeps events until the
	// first reader connects. Later, events are lost while no reader is connected.
	//
	// RemovePodSandbox sends no events for the objects that it removes. A container that is stopped
	// before it was started exits with code 2, at a time before 1970. Each further stop of an
	// exited container sets a new finish time. A stopped sandbox keeps its address. A container's
	// creation time in lists is earlier than in its status, and changes when the runtime restarts.
	// If containers are removed or their sandbox is stopped, they get 10 s to end. If the
	// content-type of the first call on a connection is not exactly application/grpc, the
	// connection is closed.
	CRIO
	// CRIOWithoutEvents is CRIO in its default configuration. It ends each event stream at once,
	// without an error.
	CRIOWithoutEvents
)

// habits describes the behaviour of a model.
type habits struct {
	name, version  string
	crio           bool       // true for the models of CRI-O; see CRIO
	missingIsError bool       // true if stopping a missing object is an error
	refusal        codes.Code // the error code for creating a container in a stopped sandbox
	knowsExits     bool       // true if exit codes from an outage are known later
	streamingLists bool
	events         eventHabit
	eventBuffer    int
	holdEventsFor  time.Duration // how long events are held while there is no reader
	deletedFirst   bool          // true if a sandbox's last event comes before it leaves the list
}

type eventHabit int

const (
	eventsUnimplemented eventHabit = iota
	eventsEndAtOnce
	eventsShared    // one buffer for all readers; an event goes to one of them; dropped when full
	eventsInTurn    // one buffer, one sender; an event goes to all readers; dropped when full
	eventsBroadcast // a buffer for each reader; operations wait when one is full
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
