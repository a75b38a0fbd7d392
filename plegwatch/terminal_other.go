//go:build !unix

package main

import "os"

// terminalColumns cannot tell how many columns a terminal has here.
func terminalColumns(f *os.File) (columns int, isTerminal bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
