package cri_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegz"
)

// If an agent starts while one container blocks the lists, the agent names the container if
// containerd's bundles exist. Without bundles, the agent reports an unknown container. If the
// runtime is frozen, the agent names no container.
func TestSearchForTheStuckContainer(t *testing.T) {
	for _, withBundles := range []bool{true, false} {
		t.Run(fmt.Sprintf("bundles=%v", withBundles), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { searchStuck(t, withBundles) })
		})
	}
}

func searchStuck(t *testing.T, withBundles bool) {
	s, dialer := inMemory(t)
	defer s.Stop()
	state := t.TempDir()
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid", Namespace: "shop", Name: "web-0"})
	app, proxy := runContainer(t, s, sandbox, "app"), runContainer(t, s, sandbox, "proxy")
	spec := func(kind, name string) string {
		return fmt.Sprintf(`{"annotations": {"io.kubernetes.cri.container-type": %q, "io.kubernetes.cri.container-name": %q,
			"io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.sandbox-name": "web-0",
			"io.kubernetes.cri.sandbox-uid": "uid"}}`, kind, name)
	}
	if withBundles {
		bundleOf(t, state, sandbox, "config.json", spec("sandbox", ""))
		bundleOf(t, state, app, "config.json", spec("container", "app"))
		bundleOf(t, state, proxy, "config.json", spec("container", "proxy"))
		bundleOf(t, state, "broken", "config.json", "{")
	}
	s.Block("StreamContainers", "")
	s.Block("ListContainers", "")
	s.Block("ContainerStatus", app)

	r, err := cri.Dial("/memory", cri.WithLogger(logr.Discard()), cri.WithStateDir(state), dialer)
	must(t, err)
	defer r.Close()
	g := pleg.New(r, pleg.WithLogger(logr.Discard()))
	g.Start(t.Context())
	defer g.Stop()

	wantAfter := func(passed time.Duration, frozen bool, sentence string) {
		t.Helper()
		time.Sleep(passed)
		synctest.Wait()
		h := g.HealthReport()
		if h.StuckRelist == nil || h.StuckRelist.Frozen != frozen || !frozen && time.Since(h.LastAnswer) > 4*time.Second {
			t.Errorf("last answer %v ago, %+v", time.Since(h.LastAnswer), h.StuckRelist)
		}
		if c := plegz.NewCondition(h, time.Now()); c.Level != plegz.LevelError || !strings.Contains(c.Sentence, sentence) {
			t.Errorf("%s: %s, want %s", c.Level, c.Sentence, sentence)
		}
		named := strings.Contains(h.Reason, "ContainerStatus of container shop/web-0/app (")
		if named != (withBundles && !frozen) {
			t.Error(h.Reason)
		}
	}
	sentence := "a container blocks the lists, and which one is not known: " +
		"StreamContainers has not been answered since at least "
	if withBundles {
		sentence = "container shop/web-0/app (" + app[:13] + "…) has blocked the lists since at least "
	}
	for range 3 { // past the list's deadline
		wantAfter(time.Minute+20*time.Second, false, sentence)
	}
	for range 30 { // over another deadline
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if c := plegz.NewCondition(g.HealthReport(), time.Now()); withBundles && !strings.Contains(c.Sentence, sentence) {
			t.Errorf("%v: %s, want %s", time.Now().UTC(), c.Sentence, sentence)
		}
	}
	s.Freeze()
	wantAfter(15*time.Second, true, "nothing has been answered since ")
	s.Thaw()
	wantAfter(10*time.Second, false, sentence)
	s.Heal()
	time.Sleep(5 * time.Second)
	synctest.Wait()
	if calls, _ := r.CallsInFlight(); len(calls) > 0 || !g.HealthReport().Healthy || len(g.Pods()) != 1 {
		t.Errorf("%v %+v", calls, g.HealthReport())
	}
}
