//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalColumns returns how many columns the terminal has, if f is one; 0 if the terminal
// does not say.
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
