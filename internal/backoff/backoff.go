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
	// Jitter is true if each wait is shortened at random, by up to a quarter, so that nodes do not
	// retry together.
	Jitter bool
}

// Wait returns the wait after a failed attempt, counted from 1: First, then doubled up to Longest.
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
