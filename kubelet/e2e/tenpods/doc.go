// Package tenpods tests that a kubelet on the library works: it runs ten static pods on a
// real containerd. It uses the kubelets of one release, which kubelet/build has built;
// make kubelets tests all releases.
package tenpods
