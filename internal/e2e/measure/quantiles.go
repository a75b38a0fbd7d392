// Package measure turns samples into the figures that the programs of this module
// print.
package measure

import (
	"fmt"
	"slices"
	"time"
)

// Samples are durations that were measured.
type Samples []time.Duration

// Quantile returns the smallest sample that at least the share q of all samples
// does not exceed; zero if there is none.
func (s Samples) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Milliseconds shows a duration as the tables do.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
