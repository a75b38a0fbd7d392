// Package overcri is shared by the benchmarks over CRI. It runs a runtime in a separate process,
// and measures CPU time.
package overcri
