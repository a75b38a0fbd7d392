package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// entry is an event that a subscriber received.
type entry struct {
	*pleg.PodLifecycleEvent
	id     string // of the container or sandbox; empty for PodSync
	at     time.Time
	status *pleg.PodStatus // the cached status of the pod when the event was received
}

// journal stores the events of a subscriber. It checks every event against rules 1 and 3 of the
// contract. These rules hold whatever happens on the node.
type journal struct {
	cache *pleg.PodCache

	mu      sync.Mutex
	entries []entry
	wrong   []string
}

func newJournal(cache *pleg.PodCache) *journal { return &journal{cache: cache} }

// read stores events until the channel is closed or ctx ends.
func (j *journal) read(ctx context.Context, events <-chan *pleg.PodLifecycleEvent) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			j.enter(e)
		case <-ctx.Done():
			return
		}
	}
}

func (j *journal) enter(e *pleg.PodLifecycleEvent) {
	now := time.Now()
	status, err := j.cache.Get(e.ID)
	id, _ := e.Data.(string)
	j.mu.Lock()
	defer j.mu.Unlock()
	defer func() {
		j.entries = append(j.entries, entry{PodLifecycleEvent: e, id: id, at: now, status: status})
	}()
	complain := func(format string, args ...any) {
		j.wrong = append(j.wrong, fmt.Sprintf("%s of %.12s: ", e.Type, id)+fmt.Sprintf(format, args...))
	}
	// Events that are caused by an exit event are not checked. An exit event causes no inspection,
	// so the cached status may be older than the list that confirmed the exit.
	if err == nil && e.Cause != pleg.CauseExit && status.TimeStamp.Before(e.ListedAt) && !status.TimeStamp.IsZero() {
		complain("the cache holds a status of %v, older than the listing of %v that caused the event", status.TimeStamp,
			e.ListedAt)
	}
	for _, s := range status.ContainerStatuses {
		dead := s.ID.ID == id && e.Type == pleg.ContainerDied ||
			slices.Contains(typesOf(j.entries, s.ID.ID), pleg.ContainerDied)
		if dead && s.State == pleg.ContainerStateRunning {
			complain("the cache shows %.12s running, which has died", s.ID.ID)
		}
	}
	if e.Type == pleg.PodSync {
		return
	}
	before := typesOf(j.entries, id)
	switch {
	case id == "" || e.Container == nil || e.Pod == nil:
		complain("the event names no container or pod")
	case slices.Contains(before, e.Type):
		complain("comes again")
	case e.Type == pleg.ContainerStarted && len(before) > 0,
		e.Type == pleg.ContainerDied && slices.Contains(before, pleg.ContainerRemoved),
		e.Type == pleg.ContainerRemoved && !slices.Contains(before, pleg.ContainerDied):
		complain("out of order, after %v", before)
	}
}

// problems returns the violations of the rules so far.
func (j *journal) problems() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.wrong)
}

// of returns the events of a container or sandbox.
func (j *journal) of(id string) []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var es []entry
	for _, e := range j.entries {
		if e.id == id {
			es = append(es, e)
		}
	}
	return es
}

// event returns a container's first event of a type. It panics if there is none.
func (j *journal) event(id string, typ pleg.PodLifeCycleEventType) entry {
	for _, e := range j.of(id) {
		if e.Type == typ {
			return e
		}
	}
	panic(fmt.Sprintf("no %s of %s", typ, id))
}

// types returns the types of a container's events.
func (j *journal) types(id string) []pleg.PodLifeCycleEventType {
	return typesOf(j.of(id), id)
}

func typesOf(es []entry, id string) []pleg.PodLifeCycleEventType {
	var types []pleg.PodLifeCycleEventType
	for _, e := range es {
		if e.id == id {
			types = append(types, e.Type)
		}
	}
	return types
}

// deaths returns, for each container and sandbox that died, the UID of its pod.
func (j *journal) deaths() map[string]types.UID {
	j.mu.Lock()
	defer j.mu.Unlock()
	pods := make(map[string]types.UID)
	for _, e := range j.entries {
		if e.Type == pleg.ContainerDied {
			pods[e.id] = e.ID
		}
	}
	return pods
}

// ids returns the IDs of all containers and sandboxes with events.
func (j *journal) ids() map[string]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	ids := make(map[string]bool)
	for _, e := range j.entries {
		if e.id != "" {
			ids[e.id] = true
		}
	}
	return ids
}

func (j *journal) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, e := range j.entries[max(0, len(j.entries)-100):] {
		name := "?"
		if e.Pod != nil {
			name = e.Pod.Name
		}
		if e.Container != nil {
			name += "/" + e.Container.Name
		}
		fmt.Fprintf(&b, "%s %-16s %.12s %s (%s)\n", e.at.Format("15:04:05.000"), e.Type, e.id, name, e.Cause)
	}
	return b.String()
}

// has reports whether a container has an event of this type.
func (j *journal) has(id string, typ pleg.PodLifeCycleEventType) bool {
	return slices.Contains(j.types(id), typ)
}
