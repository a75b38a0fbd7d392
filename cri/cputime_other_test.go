//go:build !darwin && !linux

package cri_test

import (
	"testing"
	"time"
)

// cpuTime is not available on this operating system.
func cpuTime(testing.TB) (used time.Duration, known bool) { return 0, false }
