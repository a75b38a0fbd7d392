package measure

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time that this process has used, without its children's.
func CPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("asking for the CPU time of this process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
