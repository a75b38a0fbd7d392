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
	// First is the wait after the first attempt, and the shortest there is. There
	// is no wait if it is zero or less.
	First time.Duration
	// Longest bounds the wait. A Longest below First counts as First.
	Longest time.Duration
	// Jitter makes each wait a random one between three quarters of what it would
	// be and the whole, so that many nodes do not come back all at once.
	Jitter bool
}

// Wait returns the wait after an attempt that failed: First after attempt 1, and
// twice as long after every other, up to Longest. An attempt below 1 counts as 1.
func (p Policy) Wait(attempt int) time.Duration {
	wait := p.doubled(attempt)
	if p.Jitter {
		wait -= rand.N(wait/4 + 1) //nolint:gosec // spreads load; not a secret
	}
	return wait
}

func (p Policy) doubled(attempt int) time.Duration {
	if p.First <= 0 {
		return 0
	}
	wait, longest := p.First, max(p.First, p.Longest)
	for i := 1; i < attempt; i++ {
		if wait > longest/2 { // doubled, it may overflow
			return longest
		}
		wait *= 2
	}
	return wait
}
