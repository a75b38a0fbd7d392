// Package plegtest provides fakes and a conformance test for users of package pleg.
// Tests need no node and no waiting.
//
//   - [Runtime] is a scriptable fake of [pleg.Runtime] for unit tests: set pods, relist,
//     check the events. It can fail, be slow, hang, and return bad data.
//   - [CRIServer] is a CRI v1 runtime on a unix socket in this process. It simulates pods
//     on a timetable, and behaves like containerd or CRI-O. It refuses and reports every
//     call that would change something, unless it was given programs for its containers
//     to run: then it takes changes, and a node agent can be tested on it.
//   - [TestRuntime] is a conformance test of implementations of [pleg.Runtime].
//
// # Concurrency
//
// Everything in this package may be used from several goroutines at once. The fake
// runtime starts no goroutine and blocks only on channels and timers, so it works inside
// a testing/synctest bubble. The CRI server uses a real socket, so it does not, unless
// [WithListener] gives it another listener; its Stop joins every goroutine that it started.
package plegtest
