// Package backoff computes how long to wait before another attempt.
package backoff

import "time"

// Policy is a wait that doubles with every attempt. It is a value and safe for concurrent use.
type Policy struct {
	// First is the wait after the first attempt. It must be positive.
	First time.Duration
	// Longest is the longest wait, unless First is longer.
	Longest time.Duration
}

// Wait returns the wait after a failed attempt, counted from 1: First, then doubled up to Longest.
func (p Policy) Wait(attempt int) time.Duration {
	wait := p.First
	for i := 1; i < attempt && wait < p.Longest; i++ {
		wait = min(2*wait, p.Longest)
	}
	return wait
}
