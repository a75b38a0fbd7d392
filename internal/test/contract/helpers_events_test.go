package contract_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kubepleg/pleg"
)

// read returns the events that are in a channel now, one per line, sorted by pod.
func read(ch <-chan *pleg.PodLifecycleEvent) []string {
	var events []*pleg.PodLifecycleEvent
	for {
		select {
		case e, open := <-ch:
			if open {
				events = append(events, e)
				continue
			}
			return append(lines(events), "closed")
		default:
			return lines(events)
		}
	}
}

// lines returns one line per event, sorted by pod. The events of a pod stay in order.
func lines(events []*pleg.PodLifecycleEvent) (lines []string) {
	slices.SortStableFunc(events, func(a, b *pleg.PodLifecycleEvent) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range events {
		lines = append(lines, line(e))
	}
	return lines
}

// line returns an event as one line.
func line(e *pleg.PodLifecycleEvent) string {
	if e.Data == nil {
		return fmt.Sprintf("%s %s", e.ID, e.Type)
	}
	return fmt.Sprintf("%s %s %s", e.ID, strings.TrimPrefix(string(e.Type), "Container"), e.Data)
}

// want compares lines with the expected lines.
func want(t *testing.T, what string, got []string, lines ...string) {
	t.Helper()
	if diff := gocmp.Diff(lines, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// replay tracks the state that results from the events read.
type replay struct {
	t     testing.TB
	state map[string]pleg.PodLifeCycleEventType // by container ID
}

// take applies one event, and fails if it is out of order or repeated.
func (r *replay) take(e *pleg.PodLifecycleEvent) {
	r.t.Helper()
	if e.Type == pleg.PodSync {
		return
	}
	id := e.Data.(string)
	was, known := r.state[id]
	switch e.Type {
	case pleg.ContainerStarted:
		if known {
			r.t.Errorf("%s after %s", line(e), was)
		}
	case pleg.ContainerDied:
		if was == pleg.ContainerDied || was == pleg.ContainerRemoved {
			r.t.Errorf("%s after %s", line(e), was)
		}
	case pleg.ContainerRemoved:
		if was != pleg.ContainerDied {
			r.t.Errorf("%s after %q", line(e), was)
		}
	default:
		r.t.Errorf("%s must not be delivered", line(e))
	}
	r.state[id] = e.Type
}

// present returns the running and exited containers, according to the events.
func (r *replay) present() map[string]pleg.State {
	present := make(map[string]pleg.State)
	for id, last := range r.state {
		switch last {
		case pleg.ContainerStarted:
			present[id] = pleg.ContainerStateRunning
		case pleg.ContainerDied:
			present[id] = pleg.ContainerStateExited
		default:
		}
	}
	return present
}

// equals checks that the events lead to the state of the pods.
func (r *replay) equals(pods []*pleg.Pod) {
	r.t.Helper()
	got := r.present()
	n := 0
	for _, p := range pods {
		for _, list := range [][]*pleg.Container{p.Containers, p.Sandboxes} {
			for _, c := range list {
				n++
				if got[c.ID.ID] != c.State {
					r.t.Errorf("%s is %s; the events say %q", c.ID.ID, c.State, got[c.ID.ID])
				}
			}
		}
	}
	if n != len(got) {
		r.t.Errorf("there are %d containers; the events say %d", n, len(got))
	}
}

func newReplay(t testing.TB) *replay {
	return &replay{t, make(map[string]pleg.PodLifeCycleEventType)}
}

// readNews returns the events that are in a channel now, one per line. A line of an Initial event
// begins with an equals sign.
func readNews(ch <-chan *pleg.PodLifecycleEvent) []string {
	var lines []string
	for len(ch) > 0 {
		e := <-ch
		l := line(e)
		if e.Initial {
			l = "=" + l
		}
		lines = append(lines, l)
	}
	return lines
}

// withStatus returns an event with its container's status as one line.
func withStatus(e *pleg.PodLifecycleEvent) string {
	switch {
	case e.Status == nil:
		return line(e) + " without status"
	case e.Status.State == pleg.ContainerStateExited:
		return fmt.Sprintf("%s exited %d %s", line(e), e.Status.ExitCode, e.Status.Reason)
	default:
		return fmt.Sprintf("%s %s", line(e), e.Status.State)
	}
}

// readStatuses returns the events that are in a channel now, with the statuses of their containers.
func readStatuses(ch <-chan *pleg.PodLifecycleEvent) []string {
	var lines []string
	for len(ch) > 0 {
		lines = append(lines, withStatus(<-ch))
	}
	return lines
}
