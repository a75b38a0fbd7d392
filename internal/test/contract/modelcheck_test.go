package contract_test

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// check checks that an event that a subscriber has read follows the rules.
func (m *model) check(sub *modelSub, e *pleg.PodLifecycleEvent) {
	// The cache drops a pod's time of observation when the pod's removal is published.
	if s, err := m.cache.Get(e.ID); err == nil && s.Name != "" && !fresh(m.cache, e.ID, e.ListedAt.Add(-1)) {
		m.problem("rule 3: %s listed at %v, and the cache is not as new", line(e), e.ListedAt)
	}
	if e.Type == pleg.PodSync {
		if e.Initial {
			m.problem("initial: %s", line(e))
		}
		return
	}
	id := e.Data.(string)
	was := sub.last[id]
	sub.last[id] = e.Type
	if e.Initial && was != "" || sub.began != nil && e.Initial != (was == "" && sub.began[id] == e.Type) {
		m.problem("initial: %s has %v after %q, published was %q", line(e), e.Initial, was, sub.began[id])
	}
	m.checkStatus(e)
	switch e.Type {
	case pleg.ContainerStarted:
		if was == "" {
			return
		}
	case pleg.ContainerDied:
		if was == "" || was == pleg.ContainerStarted {
			return
		}
	case pleg.ContainerRemoved:
		if was == pleg.ContainerDied {
			return
		}
	default:
	}
	m.problem("rule 1: %s after %q", line(e), was)
}

// checkStatus compares the status of an event with the real end of the container: rule 4.
func (m *model) checkStatus(e *pleg.PodLifecycleEvent) {
	s, id := e.Status, e.Data.(string)
	switch {
	case s == nil || s.State != pleg.ContainerStateExited:
		if e.Type == pleg.ContainerRemoved && m.seenExited[id] {
			m.problem("rule 4: %s has not the status that was seen: %v", line(e), s)
		}
	case s.ID.ID != id || s.ExitCode != m.exits[id]:
		m.problem("rule 4: %s has the status of %s, exit code %d", line(e), s.ID.ID, s.ExitCode)
	}
}

// wasTrue reports whether a status was true at some time after minTime.
func wasTrue(moments []moment, status *pleg.PodStatus, minTime time.Time) bool {
	states := statesOf(status)
	for i, was := range moments {
		over := i+1 < len(moments) && moments[i+1].from.Before(minTime)
		if !over && sameStates(states, was.state) {
			return true
		}
	}
	return false
}

func says(status *pleg.PodStatus, pod *pleg.Pod) bool {
	now := make(map[string]pleg.State)
	if pod != nil {
		for _, c := range pod.Containers {
			now[c.ID.ID] = c.State
		}
	}
	return sameStates(statesOf(status), now)
}

func describe(pod *pleg.Pod) string {
	if pod == nil {
		return "absent"
	}
	var b strings.Builder
	for _, c := range pod.Containers {
		fmt.Fprintf(&b, "%s:%s ", c.ID.ID, c.State)
	}
	return b.String()
}

func statesOf(status *pleg.PodStatus) map[string]pleg.State {
	states := make(map[string]pleg.State)
	for _, c := range status.ContainerStatuses {
		states[c.ID.ID] = c.State
	}
	return states
}

func sameStates(a, b map[string]pleg.State) bool {
	if len(a) != len(b) {
		return false
	}
	for id, s := range a {
		if b[id] != s {
			return false
		}
	}
	return true
}

// countedExits returns the number of counted deaths for all reasons.
func (m *model) countedExits() (n float64) {
	for _, counted := range counted(m.t, m.reg) {
		n += counted
	}
	return n
}

// compare compares the events that a subscriber has read with the existing pods: rule 4.
func (m *model) compare(sub *modelSub, pods map[types.UID]map[string]pleg.State) {
	all := make(map[string]pleg.State)
	for _, containers := range pods {
		maps.Copy(all, containers)
	}
	expected := map[pleg.PodLifeCycleEventType]pleg.State{
		pleg.ContainerStarted: pleg.ContainerStateRunning, pleg.ContainerDied: pleg.ContainerStateExited,
	}
	for id, state := range all {
		if state == pleg.ContainerStateCreated || state == pleg.ContainerStateUnknown {
			continue // no event shows these states
		}
		if expected[sub.last[id]] != state {
			m.problem("rule 4: %s is %s, the last event is %q", id, state, sub.last[id])
		}
	}
	for id, last := range sub.last {
		if _, there := all[id]; !there && last != pleg.ContainerRemoved {
			m.problem("rule 4: %s is gone, the last event is %s", id, last)
		}
	}
}
