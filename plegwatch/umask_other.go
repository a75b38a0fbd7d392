//go:build !unix

package main

// withUmask calls f. This system has no umask.
func withUmask(_ int, f func()) { f() }
