//go:build unix

package main

import "syscall"

// withUmask calls f with the given umask and restores the old one. The umask applies to the whole
// process.
func withUmask(mask int, f func()) {
	before := syscall.Umask(mask)
	defer syscall.Umask(before)
	f()
}
