// Package plegtest provides a fake runtime and a conformance test. Tests with the fake runtime need
// no node and no waiting.
//
//   - [Runtime] is a fake [pleg.Runtime] for unit tests: set pods, relist, check the events. Its
//     calls can fail, be slow, get stuck, and return bad data.
//   - [TestRuntime] is a conformance test for implementations of [pleg.Runtime], and
//     [TestCallReporter] for those of [pleg.CallReporter].
//
// Pass TestRuntime some pods that your runtime must list:
//
//	func TestMyRuntime(t *testing.T) {
//		if err := plegtest.TestRuntime(newMyRuntime(t), "uid-of-a-pod"); err != nil {
//			t.Error(err)
//		}
//	}
//
// For programs that use CRI, package criserver provides a CRI runtime in the test's process.
//
// # Concurrency
//
// Everything in this package is safe for concurrent use. The fake runtime starts no goroutine. It
// blocks only on channels and timers, so it works in a testing/synctest bubble.
package plegtest
