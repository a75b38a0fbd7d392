package measure

import "time"

// Latency is the output of cmd/latency with -json. All figures are medians. On a runtime without
// events, Reader and Died are 0.
type Latency struct {
	// Reader is the time from the runtime's event of a death until a bare reader of the stream
	// reads it.
	Reader time.Duration
	// Died is the time from the runtime's event of a death to the ContainerDied of the generator
	// that uses the runtime's events.
	Died time.Duration
	// Whole is the time from the end of the container to ContainerDied. The end is the time that
	// the runtime reports. Polling is the same time for a generator that only polls.
	Whole, Polling time.Duration
}
