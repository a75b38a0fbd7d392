// Package nodeagent tests the node agent on a real container runtime. Some tests inject faults.
// Others compare the agent with a stock kubelet. PLEG_RUNTIME names the runtime. The tests need
// Linux and root. Their first run builds containerd and the kubelet, which takes some minutes.
package nodeagent
