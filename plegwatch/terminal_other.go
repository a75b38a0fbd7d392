//go:build !unix

package main

import "os"

// terminalColumns reports whether f is a terminal. Here it does not know the columns, and returns 0.
func terminalColumns(f *os.File) (columns int, isTerminal bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
