package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// labelled returns a pod with a tag in the labels and annotations of the pod, its container and its
// sandbox. If bad is true, the generator must copy the pod.
func labelled(tag string, bad bool) *pleg.Pod {
	pod := plegtest.NewPod("a", plegtest.Running("a1"))
	maps := func() (labels, annotations map[string]string) {
		return map[string]string{"tag": tag}, map[string]string{"note": tag}
	}
	pod.Labels, pod.Annotations = maps()
	pod.RuntimeHandler = "kata"
	for i, c := range []*pleg.Container{pod.Containers[0], pod.Sandboxes[0]} {
		c.Labels, c.Annotations = maps()
		c.Attempt = uint32(3 + i) //nolint:gosec // 3 or 4
	}
	if bad {
		pod.Containers = append(pod.Containers, nil)
	}
	return pod
}

// wantShared compares a pod from the generator with the runtime's pod: their maps must be the same
// maps, not copies.
func wantShared(t *testing.T, what string, got, own *pleg.Pod) {
	t.Helper()
	same := func(a, b map[string]string) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	if got == nil || !same(got.Labels, own.Labels) || !same(got.Annotations, own.Annotations) ||
		got.RuntimeHandler != own.RuntimeHandler {
		t.Errorf("%s: the pod is %+v", what, got)
		return
	}
	for i, c := range []*pleg.Container{got.Containers[0], got.Sandboxes[0]} {
		was := []*pleg.Container{own.Containers[0], own.Sandboxes[0]}[i]
		if !same(c.Labels, was.Labels) || !same(c.Annotations, was.Annotations) || c.Attempt != was.Attempt {
			t.Errorf("%s: a container is %+v", what, c)
		}
	}
}

// Labels and annotations are passed on, and are neither copied nor compared. If only they change,
// there is no event and no inspection. Every full list and pod list refreshes them, and the next
// events contain them. A new subscriber's first events contain the maps from the pod's last change.
func TestLabelsArePassedThrough(t *testing.T) {
	for _, bad := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			first := labelled("first", bad)
			n.SetPod(first)
			events := n.g.Watch()
			n.start()
			e := <-events
			wantShared(t, "first event", e.Pod, first)
			if e.Container.Labels["tag"] != "first" || e.Container.Attempt != 3 {
				t.Errorf("the container of the first event is %+v", e.Container)
			}
			read(events)
			inspections := n.Calls(plegtest.GetPodStatus)

			second := labelled("second", bad)
			n.SetPod(second)
			time.Sleep(1500 * time.Millisecond)
			wantShared(t, "after a full list", n.g.Pods()[0], second)
			third := labelled("third", bad)
			n.SetPod(third)
			n.g.RequestRelist("a")
			synctest.Wait()
			wantShared(t, "after a list of the pod", n.g.Pods()[0], third)
			want(t, "events of other labels", read(events))
			if got := n.Calls(plegtest.GetPodStatus); got != inspections {
				t.Errorf("other labels cost %d inspections", got-inspections)
			}
			wantShared(t, "first event of another", (<-n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))).Pod, first)

			n.SetContainer("a", "a1", pleg.ContainerStateExited)
			time.Sleep(1500 * time.Millisecond)
			wantShared(t, "next event", (<-events).Pod, third)
			n.g.RequestReinspect("a")
			synctest.Wait()
			wantShared(t, "PodSync", (<-events).Pod, third)
			n.RemovePod("a")
			time.Sleep(1500 * time.Millisecond)
			wantShared(t, "last event", (<-events).Pod, third)
		})
	}
}

// The size of label maps does not matter, because the generator never iterates over them. To
// compare or copy a million labels a thousand times takes at least 15 seconds.
func TestMillionLabels(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("makes a million labels, and measures time")
	}
	const million, relists, enough = 1_000_000, 1000, 5 * time.Second
	huge := func() *pleg.Pod {
		pod := labelled("", false)
		for i := range million {
			pod.Labels[fmt.Sprint("k", i)] = "v"
		}
		pod.Annotations, pod.Containers[0].Labels = pod.Labels, pod.Labels
		return pod
	}
	lists := [2]*pleg.Pod{huge(), huge()}
	rt := plegtest.NewRuntime()
	rt.SetPods(lists[0], plegtest.NewPod("b", plegtest.Running("b1")))
	g := pleg.NewGenericPLEG(rt.Plain(), 0, time.Hour, pleg.NewCache(), clock.RealClock{},
		pleg.WithInspectionWorkers(1))
	events := g.Watch()
	_ = g.Relist(t.Context())
	read(events)
	began := clock.RealClock{}.Now()
	for i := range relists {
		rt.SetPod(lists[i%2])
		_ = g.Relist(t.Context())
	}
	if took := (clock.RealClock{}).Since(began); took > enough {
		t.Errorf("%d relists took %v", relists, took)
	}
	rt.SetContainer("a", "a1", pleg.ContainerStateExited)
	rt.SetContainer("b", "b1", pleg.ContainerStateExited)
	_ = g.Relist(t.Context())
	e := <-events
	if line(e) != "a Died a1" || len(e.Pod.Labels) != million+1 {
		t.Errorf("got %s of a pod with %d labels", line(e), len(e.Pod.Labels))
	}
	want(t, "events", read(events), "b Died b1")
}

// Labels and annotations may contain secrets. No log, metric, report or error shows them, even
// after failures.
func TestLabelsAreNeverLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "hunter2"
		var log strings.Builder
		note := func(what ...any) { fmt.Fprintln(&log, what...) }
		lines := &logLines{}
		logger := lines.logger(10)
		n, reg := newNodeWithMetrics(t, pleg.WithLogger(logger), pleg.WithRuntimeRequestTimeout(5*time.Second))
		events := n.g.Watch()
		n.SetPod(labelled(secret, true))
		n.start()
		time.Sleep(2 * time.Second)
		n.ExitContainer("a", "a1", 1, "Error")
		n.Emit(pleg.ContainerEvent{PodUID: "a"})
		time.Sleep(2 * time.Second)
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("oops"))
		n.RestartContainer("a", "a1", "a2")
		time.Sleep(2 * time.Second)
		heal()
		heal = n.Block(plegtest.GetPodStatus, "a")
		n.ExitContainer("a", "a2", 1, "Error")
		time.Sleep(10 * time.Second)
		report, err := json.Marshal(n.g.HealthReport())
		if err != nil {
			t.Error(err)
		}
		note(string(report))
		heal()
		n.SetPods(labelled(secret, true), labelled(secret, false))
		time.Sleep(2 * time.Minute)
		_, err = n.cache.Get("a")
		healthy, unhealthy := n.g.Healthy()
		note(err, healthy, unhealthy)
		families, err := reg.Gather()
		if err != nil {
			t.Error(err)
		}
		note(families)
		sent := 0
		for len(events) > 0 {
			e := <-events
			sent++
			if e.Pod.Labels["tag"] != secret || e.Container != nil && e.Container.Annotations["note"] != secret {
				t.Errorf("%s has %v, %v", line(e), e.Pod.Labels, e.Container)
			}
			note(e)
			logger.Info("Event", "event", e)
		}
		for _, expected := range []string{"Bad data", "Cannot inspect", "slow", "Transition", "Wrote status", "duplicate",
			"Container finished"} {
			if len(lines.matching(expected)) == 0 {
				t.Errorf("no log of %q", expected)
			}
		}
		if sent < 5 {
			t.Errorf("%d events", sent)
		}
		for _, line := range append(lines.matching(""), log.String()) {
			if strings.Contains(line, secret) {
				t.Errorf("a label is shown: %s", line)
			}
		}
	})
}

// The runtime's Source is passed on unchanged, whatever its type. If only Source changes, this is
// not a change of the pod.
func TestSourceIsPassedThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		podWith := func(tag string) *pleg.Pod {
			pod := bare("a", plegtest.Running("a1"))
			pod.Containers[0].Source = func() string { return tag } // a function, which cannot be compared
			status := statusOf(pod)
			status.Source = map[string]string{"tag": tag}
			status.ContainerStatuses[0].Source = []byte(tag)
			n.SetStatus("a", status)
			pod.Containers = append(pod.Containers, nil) // bad data, so that the pod is copied
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

// Events contain the pod from its newest list, even if that list differs from the earlier list only
// in fields like the name.
func TestLastEventsHaveTheLastListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		events := n.g.Watch()
		n.relist()
		read(events)
		renamed := bare("a", plegtest.Running("a1"))
		renamed.Name = "renamed"
		n.SetPods(renamed)
		n.relist()
		n.g.RequestReinspect("a")
		n.relist()
		if e := <-events; line(e) != "a PodSync" || e.Pod.Name != "renamed" {
			t.Errorf("%s: the pod is %s", line(e), e.Pod.Name)
		}
	})
}
