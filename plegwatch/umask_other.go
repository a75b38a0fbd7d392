//go:build !unix

package main

// withUmask calls f. There is no file mode creation mask here.
func withUmask(_ int, f func()) { f() }
