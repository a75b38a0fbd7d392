package plegtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// Runtime is a fake container runtime: a [pleg.Runtime], [pleg.PodGetter] and
// [pleg.EventSource] whose pods the test sets. Its methods may be called from
// several goroutines at once; it starts none.
//
// What it hands out never changes: a change makes a new *pleg.Pod, and a pod in
// which nothing changed is the same pointer in the next list. While no pod
// changed, GetPods hands out the same slice again and allocates nothing.
type Runtime struct {
	clock clock.Clock // set once by NewRuntime

	mu sync.Mutex
	// All below are guarded by mu, which is never held while a call blocks.

	slots []slot
	// first is the first slot of each UID; the others are duplicates, which are
	// listed and otherwise ignored.
	first map[types.UID]int
	// listed is what GetPods(all) hands out; nil when it has to be made anew.
	listed []*pleg.Pod

	lives    map[lifeKey]life
	ips      map[lifeKey][]string
	statuses map[types.UID]*pleg.PodStatus

	faults  faultSet
	calls   map[callKey]*callCount
	streams []*stream
	mode    EventMode
	emit    bool
}

// slot is a place in the list. Removing a pod leaves an empty slot behind until
// the list is made anew, so that 10,000 removals are not 10,000 copies.
type slot struct {
	pod  *pleg.Pod
	gone bool
}

var (
	_ pleg.Runtime     = (*Runtime)(nil)
	_ pleg.PodGetter   = (*Runtime)(nil)
	_ pleg.EventSource = (*Runtime)(nil)
)

// RuntimeOption is an option of NewRuntime.
type RuntimeOption interface {
	applyToRuntime(r *Runtime)
}

// NewRuntime returns a fake runtime without pods, which answers at once.
func NewRuntime(opts ...RuntimeOption) *Runtime {
	r := &Runtime{
		clock:    clock.RealClock{},
		first:    make(map[types.UID]int),
		lives:    make(map[lifeKey]life),
		ips:      make(map[lifeKey][]string),
		statuses: make(map[types.UID]*pleg.PodStatus),
		calls:    make(map[callKey]*callCount),
	}
	for _, opt := range opts {
		opt.applyToRuntime(r)
	}
	return r
}

// Plain returns a view of the runtime that is a [pleg.Runtime] and nothing more:
// it cannot list one pod and has no events. For a view with one of the two, embed
// Plain and the companion in a struct:
//
//	struct {
//		pleg.Runtime
//		pleg.PodGetter
//	}{rt.Plain(), rt}
func (r *Runtime) Plain() pleg.Runtime {
	return plainRuntime{r}
}

type plainRuntime struct{ r *Runtime }

func (p plainRuntime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	return p.r.GetPods(ctx, all)
}

func (p plainRuntime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	return p.r.GetPodStatus(ctx, pod)
}

// GetPods lists the pods in the order they were first set. If all is false, only
// running containers and ready sandboxes are listed, and pods that have one.
func (r *Runtime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	asCalled, faults := r.begin(GetPods, "")
	defer r.end(GetPods, "")
	stale := false
	for _, f := range faults {
		if err := f.suffer(ctx, r.clock); err != nil {
			pods := r.list(all)
			return pods[:min(f.Partial, len(pods)):min(f.Partial, len(pods))], err
		}
		stale = stale || f.Stale
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if stale {
		return ofAll(asCalled, all), nil
	}
	return r.list(all), nil
}

// GetPod lists one pod; the error wraps [pleg.ErrPodNotFound] if there is none
// with this UID.
func (r *Runtime) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	asCalled, faults := r.begin(GetPod, uid)
	defer r.end(GetPod, uid)
	stale := false
	for _, f := range faults {
		if err := f.suffer(ctx, r.clock); err != nil {
			return nil, err
		}
		stale = stale || f.Stale
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pod := r.Pod(uid)
	if stale {
		pod = nil
		if i := slices.IndexFunc(asCalled, func(p *pleg.Pod) bool { return p != nil && p.ID == uid }); i >= 0 {
			pod = asCalled[i]
		}
	}
	if pod == nil {
		return nil, fmt.Errorf("pod %q: %w", uid, pleg.ErrPodNotFound)
	}
	return pod, nil
}

// GetPodStatus returns the status that SetStatus set, else one made from the
// pod as it is now. A pod that is gone has a status without containers.
func (r *Runtime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if pod == nil {
		return nil, errors.New("asked for the status of a nil pod")
	}
	_, faults := r.begin(GetPodStatus, pod.ID)
	defer r.end(GetPodStatus, pod.ID)
	var asCalled *pleg.PodStatus
	if slices.ContainsFunc(faults, func(f *injectedFault) bool { return f.Stale }) {
		asCalled = r.statusOf(pod)
	}
	for _, f := range faults {
		if err := f.suffer(ctx, r.clock); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if asCalled != nil {
		return asCalled, nil
	}
	return r.statusOf(pod), nil
}

// SetPod adds a pod, or replaces the one of the same UID. The pod is handed over:
// the test must not modify it afterwards. It may hold bad data.
func (r *Runtime) SetPod(pod *pleg.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pod == nil {
		return
	}
	r.putLocked(pod)
}

// SetPods replaces all pods by the ones given, in this order and exactly as they
// are: nil pods, duplicate and empty UIDs are listed too. The pods are handed
// over: the test must not modify them afterwards.
func (r *Runtime) SetPods(pods ...*pleg.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := make(map[types.UID]*pleg.Pod, len(r.first))
	for _, old := range r.listLocked() {
		if old != nil && was[old.ID] == nil {
			was[old.ID] = old
		}
	}
	r.slots = make([]slot, len(pods))
	clear(r.first)
	for i, pod := range pods {
		r.slots[i] = slot{pod: pod}
		if pod == nil {
			continue
		}
		if _, taken := r.first[pod.ID]; !taken {
			r.first[pod.ID] = i
		}
	}
	for _, old := range r.listed {
		if old != nil && was[old.ID] == old && r.podLocked(old.ID) == nil {
			r.changedLocked(old, nil)
		}
	}
	for i, pod := range pods {
		if pod != nil && r.first[pod.ID] == i {
			r.changedLocked(was[pod.ID], pod)
		}
	}
	r.listed = nil
}

// RemovePod removes a pod with all that is in it. It is harmless if there is none.
func (r *Runtime) RemovePod(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.first[uid]
	if !ok {
		return
	}
	old := r.slots[i].pod
	r.slots[i] = slot{gone: true}
	delete(r.first, uid)
	r.listed = nil
	r.changedLocked(old, nil)
}

// UpdatePod replaces a pod by an edited copy of itself: edit may modify all of the
// copy, and must not call the runtime. A pod that there is not yet is made by
// NewPod first.
func (r *Runtime) UpdatePod(uid types.UID, edit func(pod *pleg.Pod)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := clonePod(r.podLocked(uid))
	if pod == nil {
		pod = NewPod(uid)
	}
	edit(pod)
	r.putLocked(pod)
}

// Pod returns a pod as it would be listed now, nil if there is none. It counts as
// no call and runs into no fault.
func (r *Runtime) Pod(uid types.UID) *pleg.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podLocked(uid)
}

func (r *Runtime) podLocked(uid types.UID) *pleg.Pod {
	if i, ok := r.first[uid]; ok {
		return r.slots[i].pod
	}
	return nil
}

func (r *Runtime) putLocked(pod *pleg.Pod) {
	i, ok := r.first[pod.ID]
	if !ok {
		i = len(r.slots)
		r.first[pod.ID] = i
		r.slots = append(r.slots, slot{})
	}
	old := r.slots[i].pod
	if old == pod {
		return
	}
	r.slots[i].pod = pod
	r.listed = nil
	r.changedLocked(old, pod)
}

func (r *Runtime) list(all bool) []*pleg.Pod {
	r.mu.Lock()
	pods := r.listLocked()
	r.mu.Unlock()
	return ofAll(pods, all)
}

func (r *Runtime) listLocked() []*pleg.Pod {
	if r.listed != nil {
		return r.listed
	}
	r.slots = slices.DeleteFunc(r.slots, func(s slot) bool { return s.gone })
	r.listed = make([]*pleg.Pod, len(r.slots))
	// From the back, so that of duplicates the first one stays.
	for i := len(r.slots) - 1; i >= 0; i-- {
		pod := r.slots[i].pod
		r.listed[i] = pod
		if pod != nil {
			if _, known := r.first[pod.ID]; known {
				r.first[pod.ID] = i
			}
		}
	}
	return r.listed
}

// ofAll returns a full list, or what runs of it.
func ofAll(pods []*pleg.Pod, all bool) []*pleg.Pod {
	if all {
		return pods
	}
	var up []*pleg.Pod
	for _, pod := range pods {
		if p := running(pod); p != nil {
			up = append(up, p)
		}
	}
	return up
}
