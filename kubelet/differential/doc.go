// Package kubelet compares the library with the kubelet's own pod lifecycle event
// generator, through the public interfaces of both.
//
// Its tests drive both generators, and both caches, with the same random
// histories of a node and want the same events, contents and answers. Where the
// library means to differ, the difference stands in the list named deviations,
// with the rule of the contract that wants it, and is shown on both sides. Its
// benchmarks measure both side by side.
//
// Every test runs in a testing/synctest bubble, so that both sides have the same
// clock and a call that is stuck costs no time.
package kubelet
