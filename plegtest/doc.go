// Package plegtest provides a fake runtime and a conformance test for users of package
// pleg. Tests need no node and no waiting.
//
//   - [Runtime] is a scriptable fake of [pleg.Runtime] for unit tests: set pods, relist,
//     check the events. It can fail, be slow, hang, and return bad data.
//   - [TestRuntime] is a conformance test of implementations of [pleg.Runtime].
//
// For a program that speaks CRI, package criserver has a CRI runtime in the process.
//
// # Concurrency
//
// Everything in this package may be used from several goroutines at once. The fake
// runtime starts no goroutine and blocks only on channels and timers, so it works inside
// a testing/synctest bubble.
package plegtest
