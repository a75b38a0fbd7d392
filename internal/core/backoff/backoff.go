// Package backoff computes how long to wait before another attempt.
package backoff

import "time"

// Policy computes a wait that doubles with every attempt. It is a value and safe for concurrent use.
type Policy struct {
	// First is the wait after the first attempt. It must be positive.
	First time.Duration
	// Longest limits the wait. If First is longer, every wait is First.
	Longest time.Duration
}

// Wait returns the wait after a failed attempt, counted from 1. It starts at First and doubles up to Longest.
func (p Policy) Wait(attempt int) time.Duration {
	wait := p.First
	for i := 1; i < attempt && wait < p.Longest; i++ {
		wait = min(2*wait, p.Longest)
	}
	return wait
}
