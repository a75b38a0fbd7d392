// Package plegtest helps to test what is built on package pleg, without a node
// and without waiting.
//
//   - [Runtime] is a scriptable fake of [pleg.Runtime], for unit tests: set pods,
//     relist, look at the events. It can fail, be slow, hang and lie.
//   - [CRIServer] is a CRI v1 runtime on a unix socket in this process, with
//     simulated pods on a timetable and the habits of containerd and CRI-O. It
//     refuses, and reports, every call that would change something.
//   - [TestRuntime] tells the author of an adapter what is wrong with it.
//
// # Concurrency
//
// Everything here may be used from several goroutines at once. The fake runtime
// starts no goroutine, and works inside a testing/synctest bubble: it blocks on
// channels and timers only. The CRI server speaks over a real socket, so it does
// not; its Stop joins all that it started.
package plegtest
