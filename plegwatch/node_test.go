package main

import (
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// TestNodeShowsEverything runs ten seconds of the simulated node on a fake clock. The node must
// show pods that come, go and return, and containers that crash, complete, run out of memory or are
// killed.
func TestNodeShowsEverything(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s, err := criserver.Start(serverconfig.With[criserver.Option](serverconfig.Config{Clock: clock}))
	if err != nil {
		t.Fatal(err)
	}
	plans := timetable.New(s, clock)
	defer plans.Stop()
	runtime, err := cri.Connect(t.Context(), s.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	cache := pleg.NewCache()
	g := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, time.Second, cache, clock)
	defer g.Stop()
	events := g.Watch()

	began := clock.Now()
	var lines []line
	plans.Play(nodePlans()...)
	for clock.Since(began) <= 10*time.Second {
		plans.Settle()
		_ = g.Relist(t.Context())
		for len(events) > 0 {
			lines = append(lines, describe(<-events, cache, clock.Now()))
		}
		clock.Step(20 * time.Millisecond)
	}

	first := map[string]line{}     // by pod name
	restarted := map[string]bool{} // by pod and container
	shown := map[string]bool{}
	for _, l := range lines {
		was, known := first[l.Pod]
		if !known {
			first[l.Pod] = l
		}
		if l.Event == pleg.ContainerStarted && l.RestartCount > 0 {
			restarted[l.Pod+"/"+l.Container] = true
		}
		shown["a pod that comes"] = shown["a pod that comes"] ||
			l.Sandbox && l.Event == pleg.ContainerStarted && l.Time.After(began)
		for what, exit := range map[string]struct {
			code   int
			reason string
		}{
			"a crash":                    {1, "Error"},
			"a container out of memory":  {137, "OOMKilled"},
			"a container that completes": {0, "Completed"},
			"a container that is killed": {137, "Error"},
		} {
			shown[what] = shown[what] || l.ExitCode != nil && *l.ExitCode == exit.code && l.Reason == exit.reason
		}
		shown["a pod that goes away"] = shown["a pod that goes away"] || l.Sandbox && l.Event == pleg.ContainerRemoved
		shown["a pod replaced under its name"] = shown["a pod replaced under its name"] || known && was.PodUID != l.PodUID
		if l.LagSeconds != nil && (*l.LagSeconds < 0 || *l.LagSeconds > 0.02) {
			t.Errorf("a lag of %v s although the clock stood still: %+v", *l.LagSeconds, l)
		}
	}
	for _, what := range []string{
		"a pod that comes", "a crash", "a container out of memory", "a container that completes",
		"a container that is killed",
		"a pod that goes away", "a pod replaced under its name",
	} {
		if !shown[what] {
			t.Errorf("the node does not show %s", what)
		}
	}
	if len(restarted) < 2 {
		t.Errorf("restarted: %v, want two containers", restarted)
	}
	if len(first) != 5 {
		t.Errorf("%d names of pods, want 5", len(first))
	}
	if n := len(lines); n < 30 || n > 60 {
		t.Errorf("%d events, want enough to see and not too many to read", n)
	}
}
