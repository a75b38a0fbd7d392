//go:build darwin || linux

package contract_test

import (
	"syscall"
	"testing"
	"time"
)

// usedCPU returns the CPU time that the process has used: unlike time, it passes in a bubble, and not
// faster on a busy machine.
func usedCPU(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
