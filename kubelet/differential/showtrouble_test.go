package kubelet

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	kubeletmetrics "k8s.io/kubernetes/pkg/kubelet/metrics"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

func showStuckHealth(t *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.podWith("b", "b1")
	s.start()
	s.node.hang("a")
	s.node.set("a", "a1", exited)
	s.wait(10 * time.Minute)
	if ok, err := s.kubelet.generator.Healthy(); ok {
		t.Errorf("the kubelet is healthy: %v", err)
	}
	if ok, err := s.here.generator.Healthy(); !ok {
		t.Errorf("not healthy here: %v", err)
	}
}

func showHealthText(t *testing.T, s *stage) {
	wantText := func(kubelet string, here ...string) {
		t.Helper()
		_, kubeletErr := s.kubelet.generator.Healthy()
		_, err := s.here.generator.Healthy()
		s.want("text of the kubelet", kubelet, text(kubeletErr))
		for _, part := range append(here, kubelet) {
			if !strings.Contains(text(err), part) {
				t.Errorf("the text here is %q, without %q", text(err), part)
			}
		}
	}
	s.node.listErr = errBroken
	s.relist()
	wantText("pleg has yet to be successful", errBroken.Error())
	s.node.listErr = nil
	s.start()
	s.wait(850 * time.Millisecond) // halfway between two relists
	s.node.listIsStuck = make(chan struct{})
	s.wait(3*time.Minute + 5*time.Second)
	_, kubeletErr := s.kubelet.generator.Healthy()
	if !strings.HasPrefix(text(kubeletErr), "pleg was last seen active 3m5") {
		t.Errorf("the text of the kubelet is %q", text(kubeletErr))
	}
	wantText(text(kubeletErr), "GetPods has been")
}

// wantPanic relists with both generators. Only the kubelet's generator must panic. Each call of
// wantPanic makes a new one, because a kubelet generator that has panicked never releases its lock.
func (s *stage) wantPanic() {
	s.t.Helper()
	s.want("the kubelet panics", true, panics(func() { newKubeletSide(s.node, 1000).generator.Relist(s.t.Context()) }))
	s.want("it panics here", false, panics(func() { _ = s.here.generator.Relist(s.t.Context()) }))
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

func showUnknownState(_ *testing.T, s *stage) {
	events := s.podWith("b", "b1")
	s.node.set("a", "a1", "paused")
	s.wantPanic()
	s.want("events here", slices.Concat([]event{{"a", "ContainerStarted", "a-sandbox"}}, events), sorted(s.here.events()))
}

func showNilPod(_ *testing.T, s *stage) {
	events := s.podWith("b", "b1")
	s.node.pods = append(s.node.pods, nil)
	s.wantPanic()
	s.want("events here", events, s.here.events())
}

func showDuplicate(_ *testing.T, s *stage) {
	s.node.pods = append(s.node.pods,
		&modelPod{uid: "a", containers: []modelContainer{{"first", running}}},
		&modelPod{uid: "a", containers: []modelContainer{{"last", running}}})
	s.relist()
	s.wantEvents([]event{{"a", "ContainerStarted", "last"}}, []event{{"a", "ContainerStarted", "first"}})
}

func showNoUID(_ *testing.T, s *stage) {
	s.node.set("", "stray", exited)
	s.relist()
	s.wantEvents([]event{{"", "ContainerDied", "stray"}, {"", "ContainerStarted", "-sandbox"}}, nil)
}

func showStop(t *testing.T, s *stage) {
	s.node.listIsStuck = make(chan struct{})
	s.kubelet.generator.Start(t.Context())
	s.here.generator.Start(t.Context())
	s.wait(time.Second)
	s.kubelet.generator.Stop()
	s.here.generator.Stop()
	if calls := s.here.generator.HealthReport().CallsInFlight; len(calls) > 0 {
		t.Errorf("after Stop, these calls remain: %v", calls)
	}
	s.podWith("a", "a1")
	close(s.node.listIsStuck)
	s.node.listIsStuck = nil
	s.wait(time.Second)
	if len(s.kubelet.events()) == 0 {
		t.Error("the kubelet's relist ended with Stop")
	}
	s.want("events here after Stop", []event(nil), s.here.events())
}

func showStartContext(_ *testing.T, s *stage) {
	events := s.podWith("a", "a1")
	ctx, end := context.WithCancel(s.ctx)
	s.kubelet.generator.Start(ctx)
	s.here.generator.Start(ctx)
	s.wait(100 * time.Millisecond)
	s.wantEvents(events, events)
	end()
	s.wait(time.Second)
	s.start() // starts only the library's generator, because the kubelet's is still running
	s.node.set("a", "a1", exited)
	s.wait(time.Minute)
	s.wantEvents(nil, died("a", "a1"))
}

func showGauges(t *testing.T, s *stage) {
	ofKubelet := metrics.NewKubeRegistry()
	ofKubelet.MustRegister(kubeletmetrics.RunningContainerCount)
	here := prometheus.NewRegistry()
	g := pleg.NewGenericPLEG(&plegRuntime{s.node}, 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithRegisterer(here))
	for _, state := range []string{running, exited} {
		s.node.set("a", "a1", state)
		s.kubelet.generator.Relist(t.Context())
		_ = g.Relist(t.Context())
	}
	s.want("running containers that the kubelet shows", 1.0, runningContainers(t, ofKubelet))
	s.want("running containers that are shown here", 0.0, runningContainers(t, here))
}

// runningContainers reads the gauge of running containers.
func runningContainers(t *testing.T, g prometheus.Gatherer) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "kubelet_running_containers" && m.GetLabel()[0].GetValue() == running {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatal("there is no gauge of running containers")
	return 0
}
