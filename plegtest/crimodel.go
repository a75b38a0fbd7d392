package plegtest

import "time"

// CRIModel is the runtime that the CRI server behaves like: what Version answers, whether
// lists can be streamed, and how container events are delivered.
type CRIModel int

const (
	// Containerd2 is containerd 2.4, the default. Events are broadcast to all readers.
	// Each reader has a buffer of 100; while it is full, the server's own operations wait
	// for the reader. While there is no reader, events are held for five minutes, and the
	// next reader gets them first. The server notices that a reader is gone when there is
	// an event for it; if it was the only reader, that event is lost. The last event of a
	// sandbox comes before the sandbox disappears from the list.
	Containerd2 CRIModel = iota
	// Containerd17 is containerd 1.7. There is one stream with a buffer of 1000; events
	// that are sent while it is full are dropped. Each event goes to one of the readers
	// only, and possibly to a reader that is gone: the call of that reader lasts until
	// the next event, which is lost. Lists cannot be streamed.
	Containerd17
	// Containerd16 is containerd 1.6: it answers Unimplemented for events and for
	// streaming lists.
	Containerd16
	// CRIO is CRI-O 1.36 with enable_pod_events. Each reader has a buffer of 1000; events
	// that are sent while it is full are dropped. As many events are held for the very
	// first reader; later, events without a reader are lost. A container's events may
	// come in the wrong order: see [CRIServer.ShuffleEvents].
	CRIO
	// CRIOWithoutEvents is CRI-O 1.36 in its default configuration: it ends every event
	// stream at once, without an error.
	CRIOWithoutEvents
)

// habits are the behaviour of a model.
type habits struct {
	name, version   string
	streamingLists  bool
	events          eventHabit
	eventBuffer     int
	holdEventsFor   time.Duration // while there is no reader; 0 is unlimited
	holdEventsAtMax int           // 0 is unlimited
	holdForFirst    bool          // hold only until there has ever been a reader
	deletedFirst    bool          // a sandbox's last event comes before it leaves the list
}

type eventHabit int

const (
	eventsUnimplemented eventHabit = iota
	eventsEndAtOnce
	eventsShared    // one buffer for all readers; full drops
	eventsBroadcast // a buffer for each; full blocks the sender
	eventsDropping  // a buffer for each; full drops
)

func (m CRIModel) habits() habits {
	switch m {
	case Containerd16:
		return habits{name: "containerd", version: "v1.6.36", events: eventsUnimplemented}
	case Containerd17:
		return habits{name: "containerd", version: "v1.7.29", events: eventsShared, eventBuffer: 1000}
	case CRIO:
		return habits{name: "cri-o", version: "1.36.0", streamingLists: true, events: eventsDropping,
			eventBuffer: 1000, holdEventsAtMax: 1000, holdForFirst: true}
	case CRIOWithoutEvents:
		return habits{name: "cri-o", version: "1.36.0", streamingLists: true, events: eventsEndAtOnce}
	case Containerd2:
	}
	return habits{name: "containerd", version: "v2.4.2", streamingLists: true, events: eventsBroadcast,
		eventBuffer: 100, holdEventsFor: 5 * time.Minute, deletedFirst: true}
}
