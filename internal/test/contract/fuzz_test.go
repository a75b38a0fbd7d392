package contract_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
)

// FuzzListings decodes bytes as the lists of a runtime, which may contain anything. After each
// list, it compares the states that a subscriber and the cache have with a naive reading of the
// list.
func FuzzListings(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2, 1, 2, 17, 34, 2, 1, 51, 255, 1, 1, 1, 18})
	f.Add([]byte{3, 1, 1, 17, 1, 1, 33, 0, 255, 3, 2, 2, 17, 17, 1, 0, 4, 1, 49, 255, 0, 255, 1, 1, 3, 16, 64, 80})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := decoder(data)
		var listed []*pleg.Pod
		rt := &scripted{
			pods:   func() ([]*pleg.Pod, error) { return listed, nil },
			status: func(p *pleg.Pod) (*pleg.PodStatus, error) { return &pleg.PodStatus{ID: p.ID}, nil },
		}
		cache := pleg.NewCache()
		g := pleg.NewGenericPLEG(rt, 10000, time.Second, cache, clocktesting.NewFakeClock(time.Unix(0, 0)),
			pleg.WithLogger(logr.Discard()), pleg.WithPollingOnly())
		events := g.Watch()
		last := make(map[string]pleg.PodLifeCycleEventType)
		for range 20 {
			listed = d.listing()
			_ = g.Relist(t.Context())
			for len(events) > 0 {
				e := <-events
				key := fmt.Sprintf("%s/%s", e.ID, e.Data)
				if e.Type == pleg.ContainerRemoved && last[key] != pleg.ContainerDied {
					t.Errorf("%s Removed after %q", key, last[key])
				}
				last[key] = e.Type
			}
			compareNaively(t, listed, last, cache)
		}
	})
}

// decoder decodes bytes into listings.
type decoder []byte

func (d *decoder) next() byte {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return b
}

func (d *decoder) listing() []*pleg.Pod {
	var pods []*pleg.Pod
	for range d.next() % 8 {
		b := d.next()
		if b == 255 {
			pods = append(pods, nil)
			continue
		}
		p := &pleg.Pod{ID: []types.UID{"", "a", "b", "c"}[b%4]}
		for range d.next() % 6 {
			c := d.container()
			if b&16 != 0 {
				p.Sandboxes = append(p.Sandboxes, c)
			} else {
				p.Containers = append(p.Containers, c)
			}
		}
		pods = append(pods, p)
	}
	return pods
}

func (d *decoder) container() *pleg.Container {
	b := d.next()
	if b == 255 {
		return nil
	}
	states := []pleg.State{
		pleg.ContainerStateRunning, pleg.ContainerStateExited, pleg.ContainerStateCreated, pleg.ContainerStateUnknown,
		"?", "",
	}
	return &pleg.Container{
		ID:    pleg.ContainerID{ID: []string{"", "1", "2", "3"}[b%4]},
		State: states[int(b>>4)%len(states)],
	}
}

// compareNaively reads a listing by rule 14: only the first of repeated items counts, and nil items
// and items without an ID do not count.
func compareNaively(
	t *testing.T, listed []*pleg.Pod, last map[string]pleg.PodLifeCycleEventType, cache *pleg.PodCache,
) {
	t.Helper()
	present := make(map[string]pleg.State)
	pods := make(map[types.UID]bool)
	for _, p := range listed {
		if p == nil || p.ID == "" || pods[p.ID] {
			continue
		}
		pods[p.ID] = true
		for _, list := range [][]*pleg.Container{p.Containers, p.Sandboxes} {
			for _, c := range list {
				if c == nil || c.ID.ID == "" {
					continue
				}
				key := fmt.Sprintf("%s/%s", p.ID, c.ID.ID)
				if present[key] != "" {
					continue
				}
				present[key] = "unknown"
				if c.State == pleg.ContainerStateRunning || c.State == pleg.ContainerStateExited {
					present[key] = c.State
				}
			}
		}
	}
	for key, state := range present {
		expected := map[pleg.State]pleg.PodLifeCycleEventType{
			pleg.ContainerStateRunning: pleg.ContainerStarted, pleg.ContainerStateExited: pleg.ContainerDied,
		}
		if state != "unknown" && last[key] != expected[state] {
			t.Errorf("%s is %s; the last event is %q", key, state, last[key])
		}
	}
	for key, event := range last {
		if present[key] == "" && event != pleg.ContainerRemoved {
			t.Errorf("%s is gone; the last event is %s", key, event)
		}
	}
	if got := len(cache.GetAll()); got != len(pods) {
		t.Errorf("%d pods in the cache, %d listed", got, len(pods))
	}
}
