package nodeagent

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	released "github.com/kubepleg/pleg/internal/e2e/kubelet"
)

// buildKubelet builds a kubelet. A test that measures time calls it first, because the build takes
// minutes.
func buildKubelet(t *testing.T) {
	t.Helper()
	if _, err := released.Build(); err != nil {
		t.Fatal(err)
	}
}

// kubelet is a released kubelet on a node.
type kubelet struct{ *released.Kubelet }

func (n *node) startKubelet() *kubelet {
	n.t.Helper()
	return &kubelet{released.Run(n.t, released.Options{
		Daemon: n.daemon, Client: n.client, Manifests: n.manifests, Dir: n.dir, NodeName: "live",
		Changes: map[string]any{"maxPods": 500},
	})}
}

// pods returns the kubelet's pods by the names in their manifests. It removes the node's name,
// which the kubelet appends to a pod's name.
func (k *kubelet) pods() map[string]*v1.Pod {
	pods := map[string]*v1.Pod{}
	for name, pod := range podsAt(k.Address) {
		pods[name[:len(name)-len("-live")]] = pod
	}
	return pods
}

// runner is the agent or the kubelet.
type runner interface {
	pods() map[string]*v1.Pod
	Pid() int
}

// awaitPods waits until r serves as many pods as count says.
func (n *node) awaitPods(r runner, count int) {
	n.t.Helper()
	n.eventually("the pods", func() string {
		if got := len(r.pods()); got != count {
			return fmt.Sprintf("%d pods, want %d", got, count)
		}
		return ""
	})
}
