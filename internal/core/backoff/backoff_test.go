package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/core/backoff"
)

func TestWaitDoublesUpToLongest(t *testing.T) {
	for name, c := range map[string]struct {
		policy backoff.Policy
		waits  map[int]time.Duration // the wait after each attempt
	}{
		"doubles": {
			backoff.Policy{First: time.Second, Longest: time.Minute},
			map[int]time.Duration{
				1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 6: 32 * time.Second,
				7: time.Minute, 8: time.Minute, math.MaxInt: time.Minute,
			},
		},
		"longest is a multiple of first": {
			backoff.Policy{First: time.Second, Longest: 4 * time.Second},
			map[int]time.Duration{2: 2 * time.Second, 3: 4 * time.Second, 4: 4 * time.Second},
		},
		"longest is odd": {
			backoff.Policy{First: 1, Longest: 5},
			map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 5, 5: 5},
		},
		"an attempt below 1 is the first": {
			backoff.Policy{First: time.Second, Longest: time.Minute},
			map[int]time.Duration{0: time.Second, -1: time.Second, math.MinInt: time.Second},
		},
		"longest is below first": {
			backoff.Policy{First: 2 * time.Minute, Longest: time.Minute},
			map[int]time.Duration{1: 2 * time.Minute, 2: 2 * time.Minute, math.MaxInt: 2 * time.Minute},
		},
		"longest is not set": {
			backoff.Policy{First: time.Second},
			map[int]time.Duration{1: time.Second, 9: time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for attempt, want := range c.waits {
				if got := c.policy.Wait(attempt); got != want {
					t.Errorf("attempt %d: got %v, want %v", attempt, got, want)
				}
			}
		})
	}
}
