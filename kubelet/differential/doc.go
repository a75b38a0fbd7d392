// Package kubelet compares the library with the kubelet's own pod lifecycle event generator. It
// uses only the public interfaces of both.
//
// Its tests play the same random histories of a node to both generators and both caches. They
// expect the same events, cache contents and answers. The list deviations contains the intended
// differences, each with the rule of the contract that requires it. A test shows each difference.
// Benchmarks compare the speed of both generators.
//
// Most tests run in a testing/synctest bubble, so that both generators have the same clock and a
// stuck call costs no time.
package kubelet
