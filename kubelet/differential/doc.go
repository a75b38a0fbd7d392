// Package kubelet compares the library with the kubelet's own pod lifecycle event
// generator, through the public interfaces of both.
//
// Its tests play the same random histories of a node to both generators and both
// caches, and expect the same events, contents and answers. The list named
// deviations has the intended differences, each with the rule of the contract that
// requires it. A test shows each on both sides. Benchmarks compare both sides.
//
// Every test runs in a testing/synctest bubble, so that both sides have the same
// clock and a stuck call costs no time.
package kubelet
