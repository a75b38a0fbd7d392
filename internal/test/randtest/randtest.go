// Package randtest runs tests on random histories.
package randtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	histories = flag.Int("rand.histories", 0, "how many histories each random test runs; 0 selects the test's own number")
	first     = flag.Uint64("rand.seed", 0, "the seed of the first history; 0 selects one at random")
)

// Check runs a test n times, each time with another source of random numbers, in a subtest with the
// seed as its name. Check stops at the first failure.
func Check(t *testing.T, n int, check func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	if *histories > 0 {
		n = *histories
	}
	seed := *first
	if seed == 0 {
		seed = 1 + uint64(rand.Uint32())
	}
	for range n {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { check(t, rand.New(rand.NewPCG(seed, 0))) }) {
			t.Fatalf("repeat it with -rand.seed=%d -rand.histories=1", seed)
		}
		seed++
	}
}

// Pick returns one of several values.
func Pick[V any](r *rand.Rand, values ...V) V { return values[r.IntN(len(values))] }

// Several returns between 0 and n values, each picked at random from values.
func Several[V any](r *rand.Rand, n int, values ...V) []V {
	several := make([]V, r.IntN(n+1))
	for i := range several {
		several[i] = Pick(r, values...)
	}
	return several
}

// Bool returns true with a probability of one half.
func Bool(r *rand.Rand) bool { return r.IntN(2) == 0 }

// Shrink removes steps from a failing history while it still fails.
func Shrink[S any](history []S, fails func([]S) bool) []S {
	for size := (len(history) + 1) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(history); {
			if shorter := slices.Concat(history[:i], history[i+size:]); fails(shorter) {
				history = shorter
			} else {
				i += size
			}
		}
	}
	return history
}
