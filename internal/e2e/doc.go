// Package e2e tests the library on a real containerd: every test starts one of
// its own, runs pods in it, breaks it, and compares what the library says with
// the test's own book of what it did.
//
// It needs Linux and root. See package containerd for what it builds and
// installs.
package e2e
