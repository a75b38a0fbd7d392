package cri

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// fileEvent is an event of inotify.
type fileEvent struct {
	watch int32  // the watch descriptor
	mask  uint32 // what has happened, as IN_ flags
	name  string // the file in the watched folder; empty for the folder itself
}

// eachFileEvent calls f with each of the kernel's events, until f fails.
func eachFileEvent(events []byte, f func(fileEvent) error) error {
	for len(events) >= unix.SizeofInotifyEvent {
		e := fileEvent{
			watch: int32(binary.NativeEndian.Uint32(events)), //nolint:gosec // as the kernel sends it
			mask:  binary.NativeEndian.Uint32(events[4:]),
		}
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if end > len(events) {
			break
		}
		e.name = strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		events = events[end:]
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}
