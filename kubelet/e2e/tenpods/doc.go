// Package tenpods has the test that a kubelet on the library does a kubelet's work: ten static
// pods on a real containerd. It runs the kubelets of one release, which kubelet/build
// has built; make kubelets runs it for all.
package tenpods
