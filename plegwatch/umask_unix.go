//go:build unix

package main

import "syscall"

// withUmask calls f with a file mode creation mask, which belongs to the whole process.
func withUmask(mask int, f func()) {
	before := syscall.Umask(mask)
	defer syscall.Umask(before)
	f()
}
