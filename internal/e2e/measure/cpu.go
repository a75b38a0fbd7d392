package measure

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time that this process has used, without its children.
func CPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("asking for the CPU time of this process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// CPUOf returns the CPU time that another process has used, to a hundredth of a second.
func CPUOf(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("asking for the CPU time of a process: %w", err)
	}
	// The fields start after the last bracket. The name stands before this bracket, and may contain
	// blanks and brackets.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	const userTime, systemTime, ticks = 11, 12, 100
	var total int64
	for _, f := range []int{userTime, systemTime} {
		var n int64
		if _, err := fmt.Sscan(fields[f], &n); err != nil {
			return 0, fmt.Errorf("reading the CPU time of a process: %w", err)
		}
		total += n
	}
	return time.Duration(total) * time.Second / ticks, nil
}
