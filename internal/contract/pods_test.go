package contract_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/klog/v2/textlogger"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

func TestFindPodByID(t *testing.T) {
	a, b := plegtest.NewPod("a"), plegtest.NewPod("b")
	all := pleg.Pods{nil, a, b}
	if got := all.FindPodByID("b"); got != b {
		t.Errorf("found %v", got)
	}
	if all.FindPodByID("c") != nil || pleg.Pods(nil).FindPodByID("") != nil {
		t.Error("found a pod that is not there")
	}
}

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

// What a runtime puts into Source comes out untouched, whatever it is, and a change of it
// alone is no change.
func TestSourceIsPassedThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		podWith := func(tag string) *pleg.Pod {
			pod := bare("a", plegtest.Running("a1"))
			pod.Containers[0].Source = func() string { return tag } // cannot be compared
			status := statusOf(pod)
			status.Source = map[string]string{"tag": tag}
			status.ContainerStatuses[0].Source = []byte(tag)
			n.SetStatus("a", status)
			pod.Containers = append(pod.Containers, nil) // bad data, which has the pod copied
			pod.Source = []string{tag}
			return pod
		}
		n.SetPod(podWith("first"))
		events := n.g.Watch()
		n.relist()
		e := <-events
		if e.Pod.Source.([]string)[0] != "first" || e.Container.Source.(func() string)() != "first" {
			t.Errorf("got %v %v", e.Pod.Source, e.Container)
		}
		s, err := n.cache.Get("a")
		if err != nil || s.Source.(map[string]string)["tag"] != "first" ||
			string(s.ContainerStatuses[0].Source.([]byte)) != "first" {
			t.Errorf("got %v, %v", s, err)
		}
		inspections := n.Calls(plegtest.GetPodStatus)
		n.SetPod(podWith("second"))
		n.relist()
		want(t, "events of another Source", read(events))
		if got := n.Calls(plegtest.GetPodStatus); got != inspections {
			t.Errorf("another Source cost %d inspections", got-inspections)
		}
	})
}
