package overcri

import (
	"syscall"
	"testing"
	"time"
)

// Measure runs the benchmark's loop. It reports the CPU time of the process as cpu-ns/op. This
// includes all goroutines, the garbage collector, and the kernel's work for the process.
func Measure(b *testing.B, once func()) {
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		once()
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
