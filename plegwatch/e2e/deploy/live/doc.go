// Package live runs the DaemonSet's pod on a real runtime, under a stock kubelet.
package live
