// Package nodeagent has the tests of the node agent on a real container runtime, under fire and
// beside a stock kubelet. PLEG_RUNTIME names the runtime. They need Linux and root; the first
// time they build containerd, and the kubelet, which takes some minutes.
package nodeagent
