// Package plegtest has a fake runtime and a conformance test. Tests with them need no node and do
// not wait.
//
//   - [Runtime] is a fake [pleg.Runtime] for unit tests: set pods, relist, check the events. It can
//     fail, be slow, get stuck, and return bad data.
//   - [TestRuntime] is a conformance test for implementations of [pleg.Runtime].
//
// A conformance test names some pods that the runtime must list:
//
//	func TestMyRuntime(t *testing.T) {
//		if err := plegtest.TestRuntime(newMyRuntime(t), "uid-of-a-pod"); err != nil {
//			t.Error(err)
//		}
//	}
//
// For programs that speak CRI, package criserver is a CRI runtime in the test's process.
//
// # Concurrency
//
// Everything in this package may be used from several goroutines at once. The fake
// runtime starts no goroutine and blocks only on channels and timers, so it works inside
// a testing/synctest bubble.
package plegtest
