// Package backoff says how long to wait before something that failed is tried
// again.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Policy is a wait that doubles with every attempt. A Policy is a value; it may be
// copied and used from any goroutine.
type Policy struct {
	// First is the wait after the first attempt. It is more than zero.
	First time.Duration
	// Longest bounds the wait, unless First is longer.
	Longest time.Duration
	// Jitter makes each wait a random one between three quarters of what it would
	// be and the whole, so that many nodes do not come back all at once.
	Jitter bool
}

// Wait returns the wait after an attempt that failed: First after attempt 1, and twice as long
// after each further one, up to Longest.
func (p Policy) Wait(attempt int) time.Duration {
	wait := p.First
	for i := 1; i < attempt && wait < p.Longest; i++ {
		wait = min(2*wait, p.Longest)
	}
	if p.Jitter {
		wait -= rand.N(wait/4 + 1) //nolint:gosec // spreads load; not a secret
	}
	return wait
}
