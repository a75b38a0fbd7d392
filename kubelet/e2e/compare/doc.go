// Package compare measures kubelets on a real containerd with the same static pods. One is the
// released kubelet, with and without EventedPLEG. The other is the kubelet on this library, with
// and without events. The tests measure times that an operator would notice, and print a table.
// They fail if a kubelet on the library breaks a promise of docs/KUBELET.md.
//
//	go run ./kubelet/build && go run ./kubelet/build -stock
//	cd kubelet/e2e/compare
//	go test -v -timeout=6h .                                            every kubelet, every scene; hours
//	go test -v -run='Kubelets/^ours$' -scenes=crash,hang -pods=6 .      one kubelet, two scenes
//	go test -v -count=3 -scenes=crash -samples=../../../docs/bench/kubelet.json .   add to the samples
//
// The tests need Linux and root.
package compare
