package cri_test

import "testing"

// measureCPU runs the benchmark's loop, and reports the CPU time per iteration if the
// operating system provides it.
func measureCPU(b *testing.B, once func()) {
	b.ReportAllocs()
	once() // connects
	before, known := cpuTime(b)
	for b.Loop() {
		once()
	}
	if after, _ := cpuTime(b); known {
		b.ReportMetric(float64(after-before)/float64(b.N), "cpu-ns/op")
	}
}
