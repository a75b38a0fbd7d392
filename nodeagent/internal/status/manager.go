package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// syncPeriod is how often a failed write is repeated. The value is the kubelet's.
const syncPeriod = 10 * time.Second

// Sink stores statuses. Its methods are never called at the same time.
type Sink interface {
	Write(pod *v1.Pod) error
	Remove(pod *v1.Pod) error
}

// Manager holds the statuses of all pods, and writes changes to a sink. Its methods are safe for
// concurrent use. Only DeletePod, RemoveOrphanedStatuses, SyncPod and Run wait for the sink.
type Manager struct {
	// Set once by NewManager.
	sink     Sink
	logger   klog.Logger
	onChange func(*v1.Pod)
	changed  chan struct{} // capacity 1; wakes Run

	syncing sync.Mutex // held during a call of the sink
	setting sync.Mutex // held while a status is compared and onChange is called; taken before mu

	mu       sync.Mutex
	statuses map[types.UID]entry // guarded by mu
}

// entry is a pod with its status, and the pod that the sink has, or nil. The pods are replaced,
// never modified.
type entry struct{ pod, written *v1.Pod }

// NewManager returns a Manager that begins with the statuses of an earlier agent. onChange is called
// with every change, one call at a time.
func NewManager(sink Sink, adopted []*v1.Pod, logger klog.Logger, onChange func(*v1.Pod)) *Manager {
	m := &Manager{sink: sink, logger: logger, onChange: onChange, changed: make(chan struct{}, 1),
		statuses: map[types.UID]entry{}}
	for _, pod := range adopted {
		m.statuses[pod.UID] = entry{pod, pod}
	}
	return m
}

func (m *Manager) entry(uid types.UID) entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.statuses[uid]
}

// GetPod returns a pod with its status, or a zero pod if the pod is unknown. Callers must not modify
// the pod.
func (m *Manager) GetPod(uid types.UID) v1.Pod {
	if e := m.entry(uid); e.pod != nil {
		return *e.pod
	}
	return v1.Pod{}
}

// Pods returns the pods with their statuses, sorted by namespace and name.
func (m *Manager) Pods() []v1.Pod {
	pods := []v1.Pod{}
	m.mu.Lock()
	for _, e := range m.statuses {
		pods = append(pods, *e.pod)
	}
	m.mu.Unlock()
	slices.SortFunc(pods, func(a, b v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// interruptedAnnotation is the annotation that contains a pod's interrupted containers, as JSON.
const interruptedAnnotation = "nodeagent.kubepleg.dev/interrupted"

// Interrupted returns the interrupted containers of the last SetPodStatus, even if an earlier agent
// called it.
func (m *Manager) Interrupted(uid types.UID) map[string]string {
	interrupted := map[string]string{}
	// Unmarshal fails if there is no annotation.
	_ = json.Unmarshal([]byte(m.GetPod(uid).Annotations[interruptedAnnotation]), &interrupted)
	return interrupted
}

// SetPodStatus sets a pod's status and interrupted containers. Run writes them soon.
func (m *Manager) SetPodStatus(pod *v1.Pod, status v1.PodStatus, interrupted map[string]string) {
	next := pod.DeepCopy()
	if len(interrupted) > 0 {
		text, _ := json.Marshal(interrupted) // cannot fail for strings
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, interruptedAnnotation, string(text))
	}
	next.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	next.Status = status
	m.setting.Lock()
	defer m.setting.Unlock()
	if equality.Semantic.DeepEqual(m.entry(pod.UID).pod, next) {
		return
	}
	m.mu.Lock()
	m.statuses[pod.UID] = entry{next, m.statuses[pod.UID].written}
	m.mu.Unlock()
	m.onChange(next)
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// DeletePod removes a pod's status, also from the sink.
func (m *Manager) DeletePod(pod *v1.Pod) error {
	m.mu.Lock()
	delete(m.statuses, pod.UID) // first, so that syncPod does not write it again
	m.mu.Unlock()
	m.syncing.Lock()
	defer m.syncing.Unlock()
	return m.sink.Remove(pod)
}

// RemoveOrphanedStatuses removes the statuses of pods that do not exist.
func (m *Manager) RemoveOrphanedStatuses(exists func(types.UID) bool) (err error) {
	for _, pod := range m.Pods() {
		if !exists(pod.UID) {
			err = errors.Join(err, m.DeletePod(&pod))
		}
	}
	return err
}

// Run writes changed statuses until ctx ends. It repeats failed writes every syncPeriod.
func (m *Manager) Run(ctx context.Context) {
	ticker := time.NewTicker(syncPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-ticker.C:
		}
		m.SyncAll()
	}
}

// SyncAll writes all statuses that the sink does not have yet.
func (m *Manager) SyncAll() {
	for _, pod := range m.Pods() {
		m.SyncPod(pod.UID)
	}
}

// SyncPod writes a pod's status now, unless the sink has it. If the write fails, Run repeats it.
func (m *Manager) SyncPod(uid types.UID) {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	e := m.entry(uid)
	if e.pod == e.written {
		return
	}
	if err := m.sink.Write(e.pod); err != nil {
		m.logger.Error(err, "A status could not be written", "pod", klog.KObj(e.pod))
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now, found := m.statuses[uid]; found {
		m.statuses[uid] = entry{now.pod, e.pod}
	}
}
