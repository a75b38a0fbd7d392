package measure

import "time"

// Latency is what cmd/latency prints with -json. All are medians; those that need an event of the
// runtime are 0 without events.
type Latency struct {
	// Reader is from the runtime's event of a death to a bare reader of its stream.
	Reader time.Duration
	// Died is the time from that event to ContainerDied, of a generator that uses the runtime's events.
	Died time.Duration
	// Whole is from the end of the container, as the runtime stamps it, to ContainerDied. Polling
	// is the same for a generator that only polls.
	Whole, Polling time.Duration
}
