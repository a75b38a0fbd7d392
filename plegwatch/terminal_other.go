//go:build !unix

package main

import "os"

// terminalColumns reports whether f is a terminal. On this system it cannot find the width, and
// returns 0 columns.
func terminalColumns(f *os.File) (columns int, isTerminal bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
