// Package live runs the DaemonSet's pod on a real containerd, under a stock kubelet.
package live
