package container

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// TestCacheReturnsTheKubeletsStatus shows that a status is the kubelet's own, except its addresses,
// which come from the generator.
func TestCacheReturnsTheKubeletsStatus(t *testing.T) {
	c := NewCache().(*cache)
	source := &PodStatus{ID: "a", Name: "pod", IPs: []string{}}
	stamp := time.Unix(2, 0)
	status := &pleg.PodStatus{ID: "a", IPs: []string{"10.0.0.1"}, TimeStamp: stamp, Source: source}
	c.PLEGCache().Set("a", status, nil, stamp)

	got, err := c.GetNewerThan(t.Context(), "a", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "pod" || !slices.Equal(got.IPs, []string{"10.0.0.1"}) {
		t.Errorf("the status is %+v", got)
	}
	if len(source.IPs) != 0 {
		t.Errorf("the runtime's own status was modified: %+v", source)
	}

	failure := errors.New("the runtime has failed")
	c.PLEGCache().Set("a", nil, failure, time.Unix(3, 0))
	if got, err := c.Get(t.Context(), "a"); !errors.Is(err, failure) || got == nil || got.Name != "pod" {
		t.Errorf("after a failure the cache has %+v, %v", got, err)
	}
	if got, err := c.Get(t.Context(), "b"); err != nil || got == nil || got.ID != "b" || got.Name != "" {
		t.Errorf("of an unknown pod the cache has %+v, %v", got, err)
	}
}

// TestCacheReturnsExits shows that the cache returns an exit that was reported by an exit event.
// The kubelet needs this status to decide whether to replace the container.
func TestCacheReturnsExits(t *testing.T) {
	c := NewCache().(*cache)
	sidecar := &Status{ID: kubecontainer.ContainerID{ID: "sidecar"}, State: kubecontainer.ContainerStateRunning}
	app := &Status{ID: kubecontainer.ContainerID{ID: "app"}, Name: "app", State: kubecontainer.ContainerStateRunning,
		RestartCount: 3}
	source := &PodStatus{ID: "a", ContainerStatuses: []*Status{sidecar, app}, ActiveContainerStatuses: []*Status{app}}
	end := time.Unix(7, 0)
	c.PLEGCache().Set("a", &pleg.PodStatus{ID: "a", Source: source, ContainerStatuses: []*pleg.Status{
		{ID: pleg.ContainerID{ID: "sidecar"}, State: pleg.ContainerStateRunning},
		{ID: pleg.ContainerID{ID: "app"}, State: pleg.ContainerStateExited, ExitCode: 137, FinishedAt: end,
			Reason: "Error", Unconfirmed: true},
	}}, nil, end)

	got, err := c.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	want := Status{ID: app.ID, Name: "app", State: ContainerStateExited, RestartCount: 3, ExitCode: 137, FinishedAt: end,
		Reason: unconfirmed}
	for _, s := range []*Status{got.ContainerStatuses[1], got.ActiveContainerStatuses[0]} {
		if !reflect.DeepEqual(*s, want) {
			t.Errorf("the status of the dead container is %+v", s)
		}
	}
	if got.ContainerStatuses[0] != sidecar || app.State != kubecontainer.ContainerStateRunning {
		t.Errorf("the other's status is %+v, the runtime's own %+v", got.ContainerStatuses[0], app)
	}
}

// TestCacheReturnsTheEndThatWasSeen shows that an outdated status of the runtime does not hide an
// exit that an earlier status showed.
func TestCacheReturnsTheEndThatWasSeen(t *testing.T) {
	c := NewCache().(*cache)
	behind := &Status{ID: kubecontainer.ContainerID{ID: "app"}, State: ContainerStateRunning}
	seen := &Status{ID: kubecontainer.ContainerID{ID: "app"}, State: ContainerStateExited, Reason: "OOMKilled"}
	c.PLEGCache().Set("a", &pleg.PodStatus{
		ID: "a", Source: &PodStatus{ID: "a", ContainerStatuses: []*Status{behind}},
		ContainerStatuses: []*pleg.Status{{ID: pleg.ContainerID{ID: "app"}, State: pleg.ContainerStateExited, Source: seen}},
	}, nil, time.Unix(7, 0))
	if got, err := c.Get(t.Context(), "a"); err != nil || got.ContainerStatuses[0] != seen {
		t.Errorf("the status is %+v, %v", got.ContainerStatuses[0], err)
	}
}

// TestPublished shows that the kubelet does not publish an unconfirmed exit. Containers that were
// created after the exit are published some seconds later. If the pod is terminal, everything is
// published.
func TestPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(seconds int) time.Time { return time.Now().Add(time.Duration(seconds) * time.Second) }
		running := func(name, id string, created time.Time) *Status {
			return &Status{ID: kubecontainer.ContainerID{ID: id}, Name: name, State: ContainerStateRunning, CreatedAt: created}
		}
		exited := func(name, id string, created, finished time.Time, reason string) *Status {
			s := running(name, id, created)
			s.State, s.FinishedAt, s.Reason, s.ExitCode = ContainerStateExited, finished, reason, 1
			return s
		}
		app, dead := running("app", "app-1", at(-9)), exited("app", "app-1", at(-9), at(-1), unconfirmed)
		successor, other := running("app", "app-2", at(0)), running("sidecar", "sidecar-1", at(-8))
		confirmed := exited("app", "app-1", at(-9), at(-1), "OOMKilled")
		late := exited("app", "app-1", at(-9), at(-5), unconfirmed)
		for name, c := range map[string]struct {
			has, published []*Status
			terminal       bool
		}{
			"nothing is unconfirmed": {has: []*Status{successor, confirmed}, published: []*Status{successor, confirmed}},
			"an exit is":             {has: []*Status{other, dead}, published: []*Status{other, app}},
			"its successor runs":     {has: []*Status{successor, other, dead}, published: []*Status{other, app}},
			"its successor has exited": {has: []*Status{exited("app", "app-2", at(0), at(0), unconfirmed), dead},
				published: []*Status{app}},
			"an init container has exited": {has: []*Status{successor, exited("init", "init-1", at(-9), at(-1), unconfirmed)},
				published: []*Status{running("init", "init-1", at(-9))}},
			"late, without a successor": {has: []*Status{late}, published: []*Status{app}},
			"late, with its successor":  {has: []*Status{successor, late}, published: []*Status{successor}},
			"the pod is terminal": {has: []*Status{other, dead}, terminal: true,
				published: []*Status{other, exited("app", "app-1", at(-9), at(-1), "Error")}},
		} {
			status := &PodStatus{ID: "a", ContainerStatuses: c.has, ActiveContainerStatuses: c.has}
			got := Published(status, c.terminal)
			for _, list := range [][]*Status{got.ContainerStatuses, got.ActiveContainerStatuses} {
				if !reflect.DeepEqual(list, c.published) {
					t.Errorf("%s: %d are published, not %d", name, len(list), len(c.published))
					for _, s := range list {
						t.Logf("%+v", *s)
					}
				}
			}
		}
		if dead.State != ContainerStateExited {
			t.Error("what the kubelet acts on was modified")
		}
	})
}
