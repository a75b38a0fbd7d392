// Package overcri is what the benchmarks over CRI have in common: a runtime in a
// process of its own, and a measure of CPU time.
package overcri
