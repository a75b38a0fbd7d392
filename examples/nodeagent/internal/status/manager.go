package status

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// syncPeriod is how often what changed is written.
const syncPeriod = 10 * time.Second

// Sink is where statuses go.
type Sink interface {
	// Write writes the pods whose status changed and drops those that are gone. What it fails to write is given to it
	// again.
	Write(ctx context.Context, changed, gone []*v1.Pod) error
}

// Manager has the statuses of all pods. Its methods are safe for concurrent use.
type Manager struct {
	sink     Sink
	logger   klog.Logger
	onChange func(*v1.Pod) // called with every new version, without a lock held; may be nil

	writing sync.Mutex // held while the sink writes; taken before mu

	mu   sync.Mutex
	pods map[types.UID]*entry // guarded by mu
}

type entry struct {
	pod              *v1.Pod // with the status; replaced, never modified
	version, written uint64  // version 0 is the status from before this start
	dropped          bool    // it is written no more
}

// NewManager returns a manager that writes to sink. adopted are the pods of an agent before this one: their statuses
// are those before the first ones.
func NewManager(sink Sink, adopted []*v1.Pod, logger klog.Logger, onChange func(*v1.Pod)) *Manager {
	m := &Manager{sink: sink, logger: logger, onChange: onChange, pods: map[types.UID]*entry{}}
	for _, pod := range adopted {
		m.pods[pod.UID] = &entry{pod: pod}
	}
	return m
}

// Get returns the status of a pod, the zero one if there is none.
func (m *Manager) Get(uid types.UID) (status v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.pods[uid]; e != nil {
		e.pod.Status.DeepCopyInto(&status)
	}
	return status
}

// Update replaces the status of a pod by what change makes of it, and reports whether it is another. What change gets
// is its own; it is called with the lock held.
func (m *Manager) Update(pod *v1.Pod, change func(before v1.PodStatus) v1.PodStatus) (changed bool) {
	m.mu.Lock()
	e := m.pods[pod.UID]
	if e == nil {
		e = &entry{pod: &v1.Pod{}}
		m.pods[pod.UID] = e
	}
	next := pod.DeepCopy()
	next.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	next.Status = change(*e.pod.Status.DeepCopy())
	changed = e.version == 0 || !equality.Semantic.DeepEqual(e.pod.Status, next.Status) ||
		!equality.Semantic.DeepEqual(e.pod.Spec, next.Spec)
	if changed {
		e.pod = next
		e.version++
	}
	m.mu.Unlock()
	if changed && m.onChange != nil {
		m.onChange(next)
	}
	return changed
}

// SetReadiness sets the readiness of a pod's containers from the results of its probes, without waiting for its
// worker.
func (m *Manager) SetReadiness(pod *v1.Pod, readiness Readiness) {
	if m.Get(pod.UID).StartTime == nil {
		return // its worker sets the first one
	}
	m.Update(pod, func(status v1.PodStatus) v1.PodStatus {
		readiness.SetReadiness(pod, &status)
		sandboxReady := slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReadyToStartContainers && c.Status == v1.ConditionTrue
		})
		status.Conditions = conditions(pod, &status, sandboxReady, status.Conditions)
		return status
	})
}

// Drop has the sink drop a pod that is about to be removed, at once. Should this process die then, the next does not
// take the pod's status for that of one which is wanted again.
func (m *Manager) Drop(ctx context.Context, pod *v1.Pod) error {
	m.mu.Lock()
	if e := m.pods[pod.UID]; e != nil {
		e.dropped = true
	}
	m.mu.Unlock()
	m.writing.Lock() // a Sync under way may be writing it
	defer m.writing.Unlock()
	return m.sink.Write(ctx, nil, []*v1.Pod{pod})
}

// Delete forgets a pod that is gone.
func (m *Manager) Delete(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

// Prune drops the statuses from before this start of the pods that are no more.
func (m *Manager) Prune(ctx context.Context, exists func(types.UID) bool) {
	m.mu.Lock()
	var gone []*v1.Pod
	for uid, e := range m.pods {
		if e.version == 0 && !exists(uid) {
			gone = append(gone, e.pod)
		}
	}
	m.mu.Unlock()
	for _, pod := range gone {
		if m.Drop(ctx, pod) == nil { // else it is tried again
			m.Delete(pod.UID)
		}
	}
}

// List returns all pods with their statuses, by name.
func (m *Manager) List() *v1.PodList {
	list := &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []v1.Pod{}}
	m.mu.Lock()
	for _, e := range m.pods {
		if e.version > 0 {
			list.Items = append(list.Items, *e.pod)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(list.Items, func(a, b v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return list
}

// Run writes what changed every ten seconds, until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, m.Sync, syncPeriod)
}

// Sync writes what changed since it was written last.
func (m *Manager) Sync(ctx context.Context) {
	m.writing.Lock()
	defer m.writing.Unlock()
	var entries []*entry
	var changed []*v1.Pod
	m.mu.Lock()
	for _, e := range m.pods {
		if e.version != e.written && !e.dropped {
			e.written = e.version
			entries, changed = append(entries, e), append(changed, e.pod)
		}
	}
	m.mu.Unlock()
	if len(changed) == 0 {
		return
	}
	if err := m.sink.Write(ctx, changed, nil); err != nil {
		m.logger.Error(err, "Statuses could not be written; they are tried again", "after", syncPeriod)
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, e := range entries {
			e.written = 0
		}
	}
}
