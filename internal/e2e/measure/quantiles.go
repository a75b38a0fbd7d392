// Package measure computes figures from samples, for the programs of this module.
package measure

import (
	"fmt"
	"slices"
	"time"
)

// Samples are measured durations.
type Samples []time.Duration

// Quantile returns the q-quantile, which is always one of the samples; zero if there are none.
func (s Samples) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Milliseconds formats a duration for the tables.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
