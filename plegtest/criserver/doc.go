// Package criserver is a CRI v1 runtime in the process of a test, on a unix socket. A
// [Server] simulates pods on a timetable, and behaves like containerd or CRI-O. It refuses
// and reports every call that would change something, unless it was given programs for its
// containers to run: then it takes changes, and a node agent can be tested on it.
//
// # Concurrency
//
// Everything in this package may be used from several goroutines at once. The server uses a
// real socket, so it does not work inside a testing/synctest bubble, unless [WithListener]
// gives it another listener; its Stop joins every goroutine that it started.
package criserver
