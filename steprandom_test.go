package pleg

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/kubepleg/pleg/internal/schedule"
)

// randomNode is a node of a few pods and what their containers are, each in its turn, and a
// reconciler that is told of it by calls which read it at any moment of theirs.
type randomNode struct {
	t       *rapid.T
	r       *reconciler
	cache   *PodCache
	events  <-chan *PodLifecycleEvent
	pods    map[types.UID]*Pod
	next    int // number of the next container
	now     time.Time
	flying  map[string]*openCall
	told    map[string]PodLifeCycleEventType // the last event of each container
	callers int
}

// openCall is a call in flight with what it has read at its beginning.
type openCall struct {
	call *schedule.Call
	read map[types.UID]*Pod
}

func newRandomNode(t *rapid.T) *randomNode {
	cfg := reconcilerConfig{Config: schedule.Config{
		Period: time.Second, Timeout: 5 * time.Second, Threshold: 3 * time.Minute,
		Workers: rapid.IntRange(1, 2).Draw(t, "workers"), ListsPods: rapid.Bool().Draw(t, "lists pods"),
	}}
	w := &randomNode{
		t: t, cache: NewCache(), now: epoch, pods: make(map[types.UID]*Pod),
		flying: make(map[string]*openCall), told: make(map[string]PodLifeCycleEventType),
	}
	m := newMetrics(func() gauges { return gauges{} })
	updates := newBroadcaster(m.countDiscarded)
	w.events = updates.Subscribe(t.Context(), subscriptionOptions{Capacity: 1000, Lasting: true})
	w.r = newReconciler(cfg, epoch, w.cache, updates, m)
	return w
}

// change lets something happen to a pod: a container starts or ends, all of them are
// removed, or the pod is.
func (w *randomNode) change(uid types.UID, what int) {
	pod := &Pod{ID: uid}
	if old := w.pods[uid]; old != nil {
		pod.Containers = slices.Clone(old.Containers)
	}
	switch n := len(pod.Containers); {
	case what == 0:
		delete(w.pods, uid)
		return
	case what == 1 && n > 0:
		pod.Containers = pod.Containers[1:]
	case what == 2 && n > 0:
		ended := *pod.Containers[n-1]
		ended.State = ContainerStateExited
		pod.Containers[n-1] = &ended
	default:
		w.next++
		id := fmt.Sprintf("%s%d", uid, w.next)
		pod.Containers = append(pod.Containers, &Container{ID: ContainerID{ID: id}, State: ContainerStateRunning})
	}
	w.pods[uid] = pod
}

// step makes a step and begins the calls.
func (w *randomNode) step(in *inputs) {
	out := w.r.step(w.now, in)
	for _, c := range out.begin {
		if c.Kind == schedule.Inspect && c.pod == nil {
			w.t.Fatalf("the inspection of %s begins without a pod", c.UID)
		}
		name := callName(c.Call)
		if w.flying[name] != nil {
			w.t.Fatalf("%s is in flight already", name)
		}
		read := make(map[types.UID]*Pod)
		for uid, pod := range w.pods {
			read[uid] = pod
		}
		w.flying[name] = &openCall{c.Call, read}
	}
	w.callers -= len(out.relisted)
	if !out.wake.IsZero() && !out.wake.After(w.now) {
		w.t.Fatalf("wake at %v, now %v", out.wake, w.now)
	}
	for {
		select {
		case e := <-w.events:
			w.hear(e)
			continue
		default:
		}
		break
	}
}

// hear fails on events of a container that are out of order.
func (w *randomNode) hear(e *PodLifecycleEvent) {
	if e.Type == PodSync {
		return
	}
	id := e.Data.(string)
	last, known := w.told[id]
	switch {
	case e.Type == ContainerStarted && !known,
		e.Type == ContainerDied && (!known || last == ContainerStarted),
		e.Type == ContainerRemoved && last == ContainerDied:
		w.told[id] = e.Type
	default:
		w.t.Fatalf("%s %s after %q", id, e.Type, last)
	}
}

// returns is what a call brings: what it has read when it began, or reads now.
func (w *randomNode) returns(name string, late, fails bool) *result {
	f := w.flying[name]
	delete(w.flying, name)
	pods := f.read
	if late {
		pods = w.pods
	}
	res := &result{call: f.call}
	switch {
	case fails:
		res.err = errors.New("broken")
	case f.call.Kind == schedule.ListAll:
		for _, uid := range sortedKeys(pods) {
			res.pods = append(res.pods, pods[uid])
		}
	case f.call.Kind == schedule.ListPod:
		if res.pod = pods[f.call.UID]; res.pod == nil {
			res.err = ErrPodNotFound
		}
	default:
		res.status = &PodStatus{}
		if pod := pods[f.call.UID]; pod != nil {
			for _, c := range pod.Containers {
				res.status.ContainerStatuses = append(res.status.ContainerStatuses, &Status{ID: c.ID, State: c.State})
			}
		}
	}
	return res
}

// settle has every call return at once until nothing is left to do but the lists of every
// period, and compares what is known with what is.
func (w *randomNode) settle() {
	on := true
	in := inputs{}
	in.periodic = &on
	w.step(&in)
	for range 400 {
		in := inputs{}
		for _, name := range slices.Sorted(mapKeys(w.flying)) {
			in.results = append(in.results, w.returns(name, true, false))
		}
		w.step(&in)
		w.now = w.now.Add(500 * time.Millisecond)
	}
	for uid, rec := range w.r.records.byUID {
		if rec.pod != w.pods[uid] || rec.dirty || rec.failures > 0 || rec.conflicted() {
			w.t.Fatalf("the record of %s: %+v", uid, rec)
		}
	}
	present := make(map[string]PodLifeCycleEventType)
	for uid, pod := range w.pods {
		status, err := w.cache.Get(uid)
		if want := podText(pod); err != nil || string(uid)+statusText(status) != want {
			w.t.Fatalf("readers get %s%s, %v; there is %s", uid, statusText(status), err, want)
		}
		for _, c := range pod.Containers {
			present[c.ID.ID] = map[State]PodLifeCycleEventType{
				ContainerStateRunning: ContainerStarted, ContainerStateExited: ContainerDied,
			}[c.State]
		}
	}
	for id, last := range w.told {
		if last != ContainerRemoved && present[id] != last {
			w.t.Fatalf("%s: told %s, is %q", id, last, present[id])
		}
		delete(present, id)
	}
	if len(present) > 0 || len(w.r.failing.byUID)+len(w.r.cache.held)+len(w.r.publisher.syncing) > 0 || w.callers > 0 {
		w.t.Fatalf("not told of %v; failing %v, held %v, owed %v, %d callers",
			present, w.r.failing.byUID, w.r.cache.held, w.r.publisher.syncing, w.callers)
	}
	if n := w.r.sched.OpenPods(); n > 0 {
		w.t.Fatalf("the schedule keeps %d pods", n)
	}
}

func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Whatever happens and whichever way calls overlap, fail and hang: what subscribers are
// told is in order, and when calls return and nothing happens any more, the cache, the
// subscribers and the records say what there is, and nothing else is kept.
func TestStepsOverlapAnyhow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newRandomNode(t)
		pod := rapid.SampledFrom([]types.UID{"a", "b", "c"})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			in := inputs{}
			for range rapid.IntRange(1, 3).Draw(t, "inputs") {
				uid := pod.Draw(t, "pod")
				switch rapid.IntRange(0, 11).Draw(t, "input") {
				case 0:
					w.callers++
					in.relists = append(in.relists, newRelistCaller())
				case 1, 2:
					put(&in.requests, uid, struct{}{})
				case 3:
					put(&in.reinspects, uid, struct{}{})
				case 4:
					in.addHint(ContainerEvent{PodUID: uid})
				case 5:
					put(&in.readers, uid, struct{}{})
				case 6, 7:
					w.change(uid, rapid.IntRange(0, 3).Draw(t, "change"))
				default:
					if names := slices.Sorted(mapKeys(w.flying)); len(names) > 0 {
						name := rapid.SampledFrom(names).Draw(t, "call")
						fails := rapid.IntRange(0, 5).Draw(t, "fails") == 0
						in.results = append(in.results, w.returns(name, rapid.Bool().Draw(t, "late"), fails))
					}
				}
			}
			w.now = w.now.Add(rapid.SampledFrom([]time.Duration{0, 1e6, 60e6, 1e9, 6e9}).Draw(t, "time"))
			w.step(&in)
		}
		w.settle()
	})
}
