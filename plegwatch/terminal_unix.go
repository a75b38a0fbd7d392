//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalColumns reports whether f is a terminal, and its width. The width is 0 if it is unknown.
func terminalColumns(f *os.File) (columns int, isTerminal bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	var size *unix.Winsize
	var sizeErr error
	err = raw.Control(func(fd uintptr) { size, sizeErr = unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ) })
	if err != nil || sizeErr != nil {
		return 0, false
	}
	return int(size.Col), true
}
