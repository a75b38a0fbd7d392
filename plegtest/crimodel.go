package plegtest

import "time"

// CRIModel is the runtime whose habits the CRI server has: what Version says,
// whether lists can be streamed, and what becomes of container events.
type CRIModel int

const (
	// Containerd2 is containerd 2.4. Events are broadcast to all readers. Each
	// has a buffer of 100, and when it is full, the server's own operations wait
	// for the reader. While nobody reads, events are held for five minutes; the
	// next reader gets them first. That a reader has gone is noticed when there is
	// an event for it, which, if it was the only one, is lost. The last event of a
	// sandbox comes before the sandbox vanishes. It is the default.
	Containerd2 CRIModel = iota
	// Containerd17 is containerd 1.7. There is one stream with a buffer of 1000,
	// and what is sent while it is full is dropped. Several readers take the
	// events from each other, also one that has gone: its call lasts until the
	// next event, which is lost with it. It cannot stream lists.
	Containerd17
	// Containerd16 is containerd 1.6: no events and no streaming lists, both
	// Unimplemented.
	Containerd16
	// CRIO is CRI-O 1.36 with enable_pod_events. Each reader has a buffer of 1000,
	// and what is sent while it is full is dropped. As many are held for the first
	// reader that ever comes; later, what nobody reads is lost. A container's
	// events may come in the wrong order: see [CRIServer.ShuffleEvents].
	CRIO
	// CRIOWithoutEvents is CRI-O 1.36 as it is installed: it ends every event
	// stream at once, without an error.
	CRIOWithoutEvents
)

// habits are what a model does.
type habits struct {
	name, version   string
	streamingLists  bool
	events          eventHabit
	eventBuffer     int
	holdEventsFor   time.Duration // while nobody reads; 0 is for ever
	holdEventsAtMax int           // 0 is without end
	holdForFirst    bool          // hold only until there has ever been a reader
	deletedFirst    bool          // a sandbox's last event comes before it vanishes
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
		return habits{name: "cri-o", version: "1.36.0", streamingLists: true, events: eventsDropping, eventBuffer: 1000, holdEventsAtMax: 1000, holdForFirst: true}
	case CRIOWithoutEvents:
		return habits{name: "cri-o", version: "1.36.0", streamingLists: true, events: eventsEndAtOnce}
	case Containerd2:
	}
	return habits{name: "containerd", version: "v2.4.2", streamingLists: true, events: eventsBroadcast, eventBuffer: 100, holdEventsFor: 5 * time.Minute, deletedFirst: true}
}
