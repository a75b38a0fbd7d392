package contract_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/textlogger"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

func TestFindContainerStatus(t *testing.T) {
	young := &pleg.Status{Name: "app", State: pleg.ContainerStateRunning}
	old := &pleg.Status{Name: "app", State: pleg.ContainerStateExited}
	side := &pleg.Status{Name: "side", State: pleg.ContainerStateRunning}
	status := &pleg.PodStatus{ContainerStatuses: []*pleg.Status{young, nil, old, side}}
	if got := status.FindContainerStatusByName("app"); got != young {
		t.Errorf("the newest of a name: %v", got)
	}
	if got := status.FindContainerStatusByName("x"); got != nil {
		t.Errorf("another name: %v", got)
	}
	if none := (*pleg.PodStatus)(nil); none.FindContainerStatusByName("app") != nil {
		t.Error("a nil status has containers")
	}
}

func TestContainerIDString(t *testing.T) {
	id := pleg.ContainerID{Type: "containerd", ID: "3f2a"}
	if got := id.String(); got != "containerd://3f2a" {
		t.Errorf("%q", got)
	}
}

func TestEventInALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := plegtest.NewPod("uid", plegtest.Running("0123456789abcdef"))
		pod.Name, pod.Namespace, pod.Containers[0].Name = "cart-0", "shop", "cart"
		n.SetPod(pod)
		events := n.g.Watch()
		n.relist()
		n.g.RequestReinspect("uid")
		n.relist()
		n.ExitContainer("uid", "0123456789abcdef", 137, "OOMKilled")
		n.relist()
		n.RemovePod("uid")
		n.relist()
		var lines []string
		var logged bytes.Buffer
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&logged)))
		for len(events) > 0 {
			e := <-events
			lines = append(lines, e.String())
			logger.Info("Event", "event", e)
		}
		want(t, "events", lines,
			"shop/cart-0 cart (0123456789abc…) ContainerStarted",
			"shop/cart-0 sandbox (uid-sandbox) ContainerStarted",
			"shop/cart-0 PodSync",
			"shop/cart-0 cart (0123456789abc…) ContainerDied exit 137 OOMKilled",
			"shop/cart-0 cart (0123456789abc…) ContainerRemoved",
			"shop/cart-0 sandbox (uid-sandbox) ContainerDied",
			"shop/cart-0 sandbox (uid-sandbox) ContainerRemoved")
		if got := logged.String(); strings.Count(got, `event="shop/cart-0 `) != len(lines) {
			t.Errorf("the log has not the same lines:\n%s", got)
		}
	})
	for want, e := range map[string]*pleg.PodLifecycleEvent{
		"no event":                         nil,
		"uid ContainerDied":                {ID: "uid", Type: pleg.ContainerDied},
		"uid container (c1) ContainerDied": {ID: "uid", Type: pleg.ContainerDied, Data: "c1"},
		"uid container (c1) ContainerDied exit 0": {ID: "uid", Type: pleg.ContainerDied, Data: "c1",
			Status: &pleg.Status{State: pleg.ContainerStateExited}},
		"uid container (c2) ContainerDied": {ID: "uid", Type: pleg.ContainerDied, Data: "c2",
			Status: &pleg.Status{State: pleg.ContainerStateRunning, ExitCode: 1}},
		"uid container (17) ContainerDied":  {ID: "uid", Type: pleg.ContainerDied, Data: 17},
		"uid container (c1) ContainerStart": {ID: "uid", Type: "ContainerStart", Data: "c1", Pod: &pleg.Pod{}},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Pods returns the newest listed pods, even if they are not inspected yet.
func TestPodsAsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		names := func() []string {
			var names []string
			for _, p := range n.g.Pods() {
				names = append(names, string(p.ID))
			}
			return names
		}
		want(t, "before Start", names())
		n.SetPods(bare("b", plegtest.Running("b1")), bare("c"), bare("a", plegtest.Running("a1")))
		defer n.Block(plegtest.GetPodStatus, "b")()
		n.start()
		want(t, "by UID, not inspected yet or without containers", names(), "a", "b", "c")
		if pod := n.g.Pod("b"); pod == nil || pod.Containers[0].ID.ID != "b1" {
			t.Errorf("got %v", pod)
		}
		if pod := n.g.Pod("d"); pod != nil {
			t.Errorf("got %v, which is not there", pod)
		}
		if _, known, err := n.cache.Lookup("b"); !known || err != nil {
			t.Errorf("not inspected yet: %v, %v", known, err)
		}
		n.RemovePod("a")
		time.Sleep(1100 * time.Millisecond)
		want(t, "without the one that is gone", names(), "b", "c")
	})
}
