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

// Runtime is a fake container runtime with pods that the test sets. It implements [pleg.Runtime],
// [pleg.PodGetter], [pleg.EventSource] and [pleg.ExitSource]. Its methods are safe for concurrent
// use. It starts no goroutine.
//
// A pod that a method returned is never modified. If a pod changes, the next list contains a new
// *pleg.Pod; if not, it contains the same pointer. While no pod changes, GetPods returns the same
// slice and allocates nothing.
type Runtime struct {
	clock clock.Clock // set once by NewRuntime

	mu sync.Mutex
	// The fields below are guarded by mu. No method holds mu while it blocks.

	slots []slot
	// first contains the first slot of each UID. Other slots with the same UID are duplicates: lists
	// include them, and all other methods ignore them.
	first map[types.UID]int
	// listed is the result of GetPods(all=true), or nil if it is out of date.
	listed []*pleg.Pod

	lives    map[lifeKey]life
	ips      map[lifeKey][]string
	statuses map[types.UID]*pleg.PodStatus

	faults faultSet
	calls  map[callKey]*callCount
	events streams[pleg.ContainerEvent]
	emit   bool
	// exits are the streams of exits. If emitExits is true, every exit is sent to them.
	exits     streams[pleg.ContainerExit]
	emitExits bool
}

// slot is a position in the list. When a pod is removed, its slot stays until the list is rebuilt,
// so that 10,000 removals do not copy the list 10,000 times.
type slot struct {
	pod  *pleg.Pod
	gone bool
}

var (
	_ pleg.Runtime     = (*Runtime)(nil)
	_ pleg.PodGetter   = (*Runtime)(nil)
	_ pleg.EventSource = (*Runtime)(nil)
	_ pleg.ExitSource  = (*Runtime)(nil)
)

// NewRuntime returns a fake runtime without pods and without faults.
func NewRuntime(opts ...Option) *Runtime {
	o := options{clock: clock.RealClock{}}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return &Runtime{
		clock:    o.clock,
		first:    make(map[types.UID]int),
		lives:    make(map[lifeKey]life),
		ips:      make(map[lifeKey][]string),
		statuses: make(map[types.UID]*pleg.PodStatus),
		calls:    make(map[callKey]*callCount),
	}
}

// Plain returns a view of the runtime that implements only [pleg.Runtime]. To add an optional
// interface, embed Plain and the interface in a struct:
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

// GetPods lists the pods in the order in which they were first set. If all is false, it lists only
// running containers, ready sandboxes, and the pods that contain any of these.
func (r *Runtime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	asCalled, faults := r.begin(GetPods, "")
	defer r.end(GetPods, "")
	stale := false
	for _, f := range faults {
		if err := f.apply(ctx, r.clock); err != nil {
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

// GetPod lists one pod. If no pod has this UID, the error wraps [pleg.ErrPodNotFound].
func (r *Runtime) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	asCalled, faults := r.begin(GetPod, uid)
	defer r.end(GetPod, uid)
	stale := false
	for _, f := range faults {
		if err := f.apply(ctx, r.clock); err != nil {
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

// GetPodStatus returns the status that SetStatus has set for the pod. If there is none, it makes a
// status from the pod's present state. The status of a removed pod contains no containers.
func (r *Runtime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if pod == nil {
		return nil, errors.New("GetPodStatus of a nil pod")
	}
	_, faults := r.begin(GetPodStatus, pod.ID)
	defer r.end(GetPodStatus, pod.ID)
	var asCalled *pleg.PodStatus
	if slices.ContainsFunc(faults, func(f *injectedFault) bool { return f.Stale }) {
		asCalled = r.statusOf(pod)
	}
	for _, f := range faults {
		if err := f.apply(ctx, r.clock); err != nil {
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

// SetPod adds a pod, or replaces the pod with the same UID. The test must not modify the pod
// afterwards. The pod may contain bad data. A nil pod is ignored.
func (r *Runtime) SetPod(pod *pleg.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pod == nil {
		return
	}
	r.putLocked(pod)
}

// SetPods replaces all pods. Lists return the given pods unchanged and in this order, even nil
// pods, duplicate UIDs and empty UIDs. Exit codes, reasons and times are forgotten, even of the same
// pods. The test must not modify the pods afterwards.
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

// RemovePod removes a pod with its containers, their exit codes and their times. It panics if the pod does
// not exist. For a list that only omits a pod, wrap GetPods.
func (r *Runtime) RemovePod(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, i := r.mustFindPodLocked(uid), r.first[uid]
	r.slots[i] = slot{gone: true}
	delete(r.first, uid)
	r.listed = nil
	r.changedLocked(old, nil)
}

// UpdatePod calls edit with a copy of the pod, and replaces the pod by that copy. edit must not
// call the runtime. If the pod does not exist, NewPod creates it first.
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

// Pod returns a pod as a list would return it now, or nil if the pod does not exist. It does not
// count as a call, and faults do not affect it.
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

// mustFindPodLocked returns a pod. It panics if the pod does not exist.
func (r *Runtime) mustFindPodLocked(uid types.UID) *pleg.Pod {
	pod := r.podLocked(uid)
	if pod == nil {
		panic(fmt.Sprintf("plegtest: no pod %q", uid)) //nolint:forbidigo // a mistake in the test
	}
	return pod
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
	// The loop runs backwards, so that r.first keeps the first of duplicate pods.
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

// ofAll returns pods if all is true. Otherwise it returns only what runs, as GetPods does.
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
