package contract_test

import (
	"slices"
	"testing"
	"testing/synctest"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 11: a pod keeps its addresses when its network is torn down. A new sandbox has its own
// addresses.
func TestRule11LastIPsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		sandbox := func(state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
			return &runtimeapi.PodSandboxStatus{Id: "s", State: state}
		}
		ready, down := sandbox(runtimeapi.PodSandboxState_SANDBOX_READY), sandbox(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		for i, step := range []struct {
			ips       []string
			sandboxes []*runtimeapi.PodSandboxStatus
			want      []string
		}{
			{nil, []*runtimeapi.PodSandboxStatus{ready}, nil},
			{[]string{"10.0.0.1", "fd00::1"}, []*runtimeapi.PodSandboxStatus{ready}, []string{"10.0.0.1", "fd00::1"}},
			{nil, []*runtimeapi.PodSandboxStatus{down}, []string{"10.0.0.1", "fd00::1"}},
			{nil, nil, []string{"10.0.0.1", "fd00::1"}},
			{nil, []*runtimeapi.PodSandboxStatus{ready, down}, nil},
			{[]string{"10.0.0.2"}, []*runtimeapi.PodSandboxStatus{ready, down}, []string{"10.0.0.2"}},
			{nil, []*runtimeapi.PodSandboxStatus{down, down}, []string{"10.0.0.2"}},
			{[]string{"10.0.0.3"}, []*runtimeapi.PodSandboxStatus{down}, []string{"10.0.0.3"}},
		} {
			given := &pleg.PodStatus{ID: "a", IPs: step.ips, SandboxStatuses: step.sandboxes}
			n.SetStatus("a", given)
			n.g.RequestReinspect("a")
			n.relist()
			if s, err := n.cache.Get("a"); err != nil || !slices.Equal(s.IPs, step.want) {
				t.Errorf("step %d: %v %v, not %v", i, s.IPs, err, step.want)
			}
			if !slices.Equal(given.IPs, step.ips) || !given.TimeStamp.IsZero() {
				t.Errorf("step %d: the status that was handed over was modified", i)
			}
		}
	})
}
