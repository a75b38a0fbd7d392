// Package live tests the DaemonSet's pod on a real container runtime with a released kubelet.
package live
