package container

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// TestCacheReturnsTheKubeletsStatus shows what of a status is the kubelet's own and what
// the generator decides.
func TestCacheReturnsTheKubeletsStatus(t *testing.T) {
	c := NewCache().(*cache)
	source := &PodStatus{ID: "a", Name: "pod", IPs: []string{}, TimeStamp: time.Unix(1, 0)}
	stamp := time.Unix(2, 0)
	status := &pleg.PodStatus{ID: "a", IPs: []string{"10.0.0.1"}, TimeStamp: stamp, Source: source}
	c.PLEGCache().Set("a", status, nil, stamp)

	got, err := c.GetNewerThan("a", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "pod" || !slices.Equal(got.IPs, []string{"10.0.0.1"}) || !got.TimeStamp.Equal(stamp) {
		t.Errorf("the status is %+v", got)
	}
	if len(source.IPs) != 0 || !source.TimeStamp.Equal(time.Unix(1, 0)) {
		t.Errorf("the runtime's own status was modified: %+v", source)
	}

	failure := errors.New("the runtime has failed")
	c.PLEGCache().Set("a", nil, failure, time.Unix(3, 0))
	if got, err := c.Get("a"); !errors.Is(err, failure) || got == nil || got.Name != "pod" {
		t.Errorf("after a failure the cache has %+v, %v", got, err)
	}
	if got, err := c.Get("b"); err != nil || got == nil || got.ID != "b" || got.Name != "" {
		t.Errorf("of an unknown pod the cache has %+v, %v", got, err)
	}
}

// TestCacheReturnsExits shows that the kubelet sees an exit that an exit event has told: it
// decides by the status whether a container needs a successor.
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

	got, err := c.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	want := Status{ID: app.ID, Name: "app", State: ContainerStateExited, RestartCount: 3, ExitCode: 137, FinishedAt: end,
		Reason: "Error"}
	for _, s := range []*Status{got.ContainerStatuses[1], got.ActiveContainerStatuses[0]} {
		if !reflect.DeepEqual(*s, want) {
			t.Errorf("the status of the dead container is %+v", s)
		}
	}
	if got.ContainerStatuses[0] != sidecar || app.State != kubecontainer.ContainerStateRunning {
		t.Errorf("the other's status is %+v, the runtime's own %+v", got.ContainerStatuses[0], app)
	}
}
