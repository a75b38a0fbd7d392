// Package live has the tests of the node agent on a real containerd, under fire and beside a
// stock kubelet. They need Linux and root; the first time they build containerd, and the
// kubelet, which takes some minutes.
package live
