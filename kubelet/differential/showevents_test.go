package kubelet

import (
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubepleg/pleg"
)

func showFullChannel(t *testing.T, s *stage) {
	*s = *newStage(t, 1)
	events := slices.Concat(s.podWith("a", "a1"), s.podWith("b", "b1"))
	s.kubelet.generator.Start(t.Context())
	s.here.generator.Start(t.Context())
	var kubelet, here []event
	for range 2 * len(events) {
		s.wait(time.Second)
		kubelet = append(kubelet, s.kubelet.events()...)
		here = append(here, s.here.events()...)
	}
	s.want("number of events of the kubelet", 1, len(kubelet))
	s.want("events here", events, sorted(here))
}

func showSubscribers(t *testing.T, s *stage) {
	events := s.podWith("a", "a1")
	s.relist()
	first, second := s.kubelet.generator.Watch(), s.kubelet.generator.Watch()
	if first != second {
		t.Error("the kubelet has two channels")
	}
	s.wantEvents(events, events)
	s.want("events for the kubelet's second reader", []event(nil), s.kubelet.events())
	s.want("events for a late subscriber here", events, taken(s.here.generator.Subscribe(s.ctx, pleg.WithCapacity(1000))))
}

func showFailureEvents(_ *testing.T, s *stage) {
	events := s.podWith("a", "a1")
	s.relist()
	s.wantEvents(events, events)
	s.node.inspectErr["a"] = errBroken
	s.node.set("a", "a1", exited)
	s.relist()
	s.wantEvents(nil, died("a", "a1"))
	delete(s.node.inspectErr, "a")
	s.relist()
	s.want("events of the kubelet", died("a", "a1"), s.kubelet.events())
}

func showNeverInspected(_ *testing.T, s *stage) {
	events := s.podWith("a", "a1")
	s.node.inspectErr["a"] = errBroken
	s.relist()
	s.wantEvents(nil, events)
	s.node.remove("a")
	s.relist()
	s.wantEvents([]event{{"a", podSync, ""}}, []event{
		{"a", "ContainerDied", "a1"}, {"a", "ContainerRemoved", "a1"},
		{"a", "ContainerDied", "a-sandbox"}, {"a", "ContainerRemoved", "a-sandbox"},
	})
}

func showAbsence(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.start()
	s.node.remove("a")
	s.kubelet.generator.RequestRelist(logr.Discard(), "a")
	s.here.generator.RequestRelist("a")
	s.wait(100 * time.Millisecond)
	gone := []event{
		{"a", "ContainerDied", "a1"}, {"a", "ContainerRemoved", "a1"},
		{"a", "ContainerDied", "a-sandbox"}, {"a", "ContainerRemoved", "a-sandbox"},
	}
	s.wantEvents(nil, gone)
	s.wait(time.Second)
	s.wantEvents(gone, nil)
}

func showStuckInspection(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.podWith("b", "b1")
	s.start()
	s.node.hang("a")
	s.node.set("a", "a1", exited)
	s.wait(2 * time.Second)
	s.node.set("b", "b1", exited)
	s.wait(time.Minute)
	s.wantEvents(nil, died("b", "b1"))
}

func showHint(_ *testing.T, s *stage) {
	r := newEventRuntime(s.node)
	s.here = newPLEGSideOf(r, 1000)
	s.podWith("a", "a1")
	s.start()
	s.node.set("a", "a1", exited)
	r.events <- pleg.ContainerEvent{PodUID: "a", ContainerID: "a1"}
	s.wait(10 * time.Millisecond)
	s.wantEvents(nil, died("a", "a1"))
	s.wait(time.Second)
	s.wantEvents(died("a", "a1"), nil)
}

func showPodSync(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.relist()
	s.forget()
	reinspect := func() {
		s.kubelet.generator.RequestReinspect("a")
		s.here.generator.RequestReinspect("a")
		s.relist()
	}
	reinspect()
	s.wantEvents([]event{{"a", podSync, ""}}, []event{{"a", podSync, ""}})

	s.node.set("a", "a1", exited)
	reinspect()
	s.want("events of the kubelet", died("a", "a1"), s.kubelet.events())
	ofPod, syncs := byPod(s.here.events())
	s.want("events here", died("a", "a1"), ofPod["a"])
	s.want("PodSync here", true, syncs["a"])
}

func showReinspect(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.start()
	s.node.listErr = errBroken
	s.kubelet.generator.RequestReinspect("a")
	s.here.generator.RequestReinspect("a")
	s.wait(time.Minute)
	s.wantEvents(nil, []event{{"a", podSync, ""}})
	s.node.listErr = nil
	s.wait(2 * time.Second)
	s.wantEvents([]event{{"a", podSync, ""}}, nil)
}
