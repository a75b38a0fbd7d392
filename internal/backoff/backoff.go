// Package backoff computes how long to wait before another attempt.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Policy is a wait that doubles with every attempt. It is a value and safe for concurrent use.
type Policy struct {
	// First is the wait after the first attempt. It must be positive.
	First time.Duration
	// Longest is the longest wait, unless First is longer.
	Longest time.Duration
	// Jitter is true if each wait is random, from three quarters of its length to all of it, so that
	// many nodes do not retry at the same time.
	Jitter bool
}

// Wait returns the wait after a failed attempt: First after attempt 1, doubling for each further one,
// up to Longest.
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
