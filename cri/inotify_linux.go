package cri

import (
	"encoding/binary"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fileEvent is an event of inotify.
type fileEvent struct {
	watch int32  // the watch descriptor
	mask  uint32 // what has happened
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

// readSmallFile returns what is in a file, and when it was written. It fails if the file is larger
// than allowed. It does not wait, also if the file is a pipe.
func readSmallFile(path string, limit int64) (content []byte, written time.Time, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if info.Size() > limit || !info.Mode().IsRegular() { // to read a FIFO would wait for who writes it
		return nil, time.Time{}, fs.ErrInvalid
	}
	content = make([]byte, limit)
	n, err := file.Read(content)
	return content[:n], info.ModTime(), err
}
