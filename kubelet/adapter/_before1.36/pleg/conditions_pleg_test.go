package pleg

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"
)

// resizedRuntime is a runtime with one pod, or none. The test's conditions check the name in the
// pod's status.
type resizedRuntime struct {
	kubecontainer.Runtime

	mu          sync.Mutex
	name        string // name of the pod; empty if there is none
	inspections int
}

func (r *resizedRuntime) set(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name = name
}

func (r *resizedRuntime) GetPods(context.Context, bool) ([]*kubecontainer.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name == "" {
		return nil, nil
	}
	id := kubecontainer.ContainerID{Type: "fake", ID: "app"}
	return []*kubecontainer.Pod{{ID: "a", Containers: []*kubecontainer.Container{
		{ID: id, State: kubecontainer.ContainerStateRunning},
	}}}, nil
}

func (r *resizedRuntime) GetPodStatus(_ context.Context, uid types.UID, _, _ string) (*kubecontainer.PodStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inspections++
	id := kubecontainer.ContainerID{Type: "fake", ID: "app"}
	return &kubecontainer.PodStatus{ID: uid, Name: r.name, ContainerStatuses: []*kubecontainer.Status{
		{ID: id, State: kubecontainer.ContainerStateRunning},
	}}, nil
}

func startResized(t *testing.T) (*resizedRuntime, *GenericPLEG) {
	t.Helper()
	r := &resizedRuntime{name: "small"}
	g := NewGenericPLEG(klog.Background(), r, make(chan *PodLifecycleEvent, 100),
		&RelistDuration{RelistPeriod: time.Second, RelistThreshold: time.Minute}, kubecontainer.NewCache(),
		clock.RealClock{}).(*GenericPLEG)
	g.Start()
	taken(g)
	return r, g
}

func taken(g *GenericPLEG) []PodLifeCycleEventType {
	synctest.Wait()
	var types []PodLifeCycleEventType
	for len(g.Watch()) > 0 {
		types = append(types, (<-g.Watch()).Type)
	}
	return types
}

func named(name string) WatchCondition {
	return func(s *kubecontainer.PodStatus) bool { return s.Name == name }
}

// TestConditionIsAskedUntilItHolds shows that a condition is checked at once and then every period
// until it holds. ConditionMet is sent once.
func TestConditionIsAskedUntilItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := startResized(t)
		defer g.Stop()
		g.SetPodWatchCondition("a", "resize", named("large"))
		g.SetPodWatchCondition("a", "always", func(*kubecontainer.PodStatus) bool { return true })
		if got := taken(g); !slices.Equal(got, []PodLifeCycleEventType{ConditionMet}) {
			t.Errorf("for the condition that holds: %v", got)
		}
		time.Sleep(3 * time.Second)
		if got := taken(g); slices.Contains(got, ConditionMet) {
			t.Errorf("before the other one holds: %v", got)
		}
		r.set("large")
		time.Sleep(time.Second)
		if got := taken(g); !slices.Equal(got, []PodLifeCycleEventType{ConditionMet}) {
			t.Errorf("when it holds: %v", got)
		}
		before := r.inspections
		time.Sleep(3 * time.Second)
		if got := taken(g); len(got) != 0 || r.inspections != before {
			t.Errorf("after that: %v, %d inspections", got, r.inspections-before)
		}
	})
}

// TestConditionIsReplaced shows that a condition replaces the earlier one with the same key, even
// if the earlier one sets the new one.
func TestConditionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := startResized(t)
		defer g.Stop()
		g.SetPodWatchCondition("a", "resize", named("small"))
		g.SetPodWatchCondition("a", "resize", func(*kubecontainer.PodStatus) bool {
			g.SetPodWatchCondition("a", "resize", named("large"))
			return true
		})
		if got := taken(g); !slices.Contains(got, ConditionMet) {
			t.Errorf("when it is replaced: %v", got)
		}
		r.set("large")
		time.Sleep(time.Second)
		if got := taken(g); !slices.Equal(got, []PodLifeCycleEventType{ConditionMet}) {
			t.Errorf("when the new one holds: %v", got)
		}
	})
}

// TestConditionsOfPodsThatAreGone shows that the conditions of a removed pod are dropped. They are
// not checked for a later pod with the same UID.
func TestConditionsOfPodsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := startResized(t)
		defer g.Stop()
		g.SetPodWatchCondition("a", "resize", named("large"))
		r.set("")
		time.Sleep(time.Second)
		taken(g)
		r.set("large")
		time.Sleep(2 * time.Second)
		if got := taken(g); slices.Contains(got, ConditionMet) || len(g.conditions.pods) != 0 {
			t.Errorf("after the pod has come back: %v, %v", got, g.conditions.pods)
		}
	})
}
