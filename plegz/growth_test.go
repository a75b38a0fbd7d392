//go:build darwin || linux

package plegz_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// podList is a runtime with a few large pods. A call costs time only for the pods that it returns.
type podList struct {
	mu   sync.Mutex
	pods []*pleg.Pod
}

func (l *podList) set(pods ...*pleg.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = pods
}

func (l *podList) GetPods(context.Context, bool) ([]*pleg.Pod, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods, nil
}

func (l *podList) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	s := &pleg.PodStatus{ID: p.ID}
	for _, c := range p.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, &pleg.Status{ID: c.ID, Name: c.Name, State: c.State})
	}
	return s, nil
}

// largePod returns a pod of running containers. Pods of different generations share no container
// IDs.
func largePod(uid types.UID, containers, generation int) *pleg.Pod {
	p := plegtest.NewPod(uid)
	for i := range containers {
		c := plegtest.Running(fmt.Sprintf("%s-%05d-%d", uid, i, generation))
		c.Name = fmt.Sprint("container-", i)
		p.Containers = append(p.Containers, c)
	}
	return p
}

// largeChanges lists changes on a node of large pods. Each function sets up the node and returns a
// function that makes the change.
var largeChanges = map[string]func(l *podList, containers int) (change func()){
	"a container ends": func(l *podList, containers int) func() {
		l.set(largePod("a", containers, 0))
		after := largePod("a", containers, 0)
		after.Containers[containers/2].State = pleg.ContainerStateExited
		return func() { l.set(after) }
	},
	"all are removed": func(l *podList, containers int) func() {
		l.set(largePod("a", containers, 0))
		return func() { l.set() }
	},
	"all are replaced": func(l *podList, containers int) func() {
		l.set(largePod("a", containers, 0))
		after := largePod("a", containers, 1)
		return func() { l.set(after) }
	},
	"those of one pod have those of another forgotten": func(l *podList, containers int) func() {
		l.set(largePod("a", containers, 0), largePod("b", containers, 0))
		a, b := largePod("a", containers, 1), largePod("b", containers, 1)
		return func() {
			l.set(a, largePod("b", containers, 0))
			time.Sleep(5 * time.Second) // fake time
			l.set(a, b)
		}
	},
}

// changeCPU returns the CPU time that a change takes while one viewer is connected. The changed
// pods have the given number of containers.
func changeCPU(t *testing.T, containers int, setUp func(l *podList, containers int) func()) time.Duration {
	var used time.Duration
	synctest.Test(t, func(t *testing.T) {
		list := &podList{}
		change := setUp(list, containers)
		n := newIdleNode(t, list, plegtest.NewRuntime(), plegz.WithHistory(containers))
		n.g.Start(t.Context())
		n.pass(2 * time.Second)
		s := n.open("/?format=stream", "")
		n.pass(2 * time.Second)
		drain(s)
		before := usedCPU(t)
		change()
		n.pass(5 * time.Second)
		n.get("/?format=text")
		used = usedCPU(t) - before
		drain(s)
	})
	return used
}

// The cost of a change grows linearly with the containers of its pod, not with their square.
func TestCostGrowsWithThePod(t *testing.T) {
	const few, times = 250, 16
	for name, setUp := range largeChanges {
		t.Run(name, func(t *testing.T) {
			small, large := time.Hour, time.Hour
			for range 3 { // takes the minimum of three runs, because disturbances only add time
				small = min(small, changeCPU(t, few, setUp))
				large = min(large, changeCPU(t, few*times, setUp))
			}
			t.Logf("%v with %d containers, %v with %d times as many", small, few, large, times)
			if large > 3*times*small {
				t.Errorf("%v with %d containers, %v with %d times as many", small, few, large, times)
			}
		})
	}
}
