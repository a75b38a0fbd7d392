// Package tenpods tests that a kubelet on the library works. It runs ten static pods on a real
// containerd. It uses the kubelets of one release that kubelet/build has built. The command make
// kubelets tests all releases.
package tenpods
