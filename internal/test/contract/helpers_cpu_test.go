//go:build darwin || linux

package contract_test

import (
	"syscall"
	"testing"
	"time"
)

// usedCPU returns the CPU time of the process. It does not depend on the load of the machine. The
// fake clock of a synctest bubble does not affect it.
func usedCPU(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
