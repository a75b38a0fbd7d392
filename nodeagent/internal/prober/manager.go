// Package prober probes containers. As in the kubelet, a Manager runs a worker for each probe of
// each container, and a resultsManager holds the results.
package prober

import (
	"context"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

// Config configures a Manager. All fields must be set.
type Config struct {
	Runtime *runtime.Client
	Clock   clock.PassiveClock
	// GetPod returns a pod with its last status.
	GetPod func(types.UID) v1.Pod
	// OnUpdate is called when a result of a pod changes. No lock is held.
	OnUpdate func(types.UID)
	// Go runs a function in a goroutine. The function returns when the context of UpdatePod ends.
	Go         func(func())
	Registerer prometheus.Registerer
	Logger     klog.Logger
}

// Manager runs the probes of all pods. Its methods are safe for concurrent use.
type Manager struct {
	// Set once by NewManager.
	config  Config
	results resultsManager
	total   *prometheus.CounterVec

	mu      sync.Mutex
	workers map[probeKey]*worker // guarded by mu
}

type probeKey struct {
	podUID    types.UID
	container string
	kind      plan.ProbeKind
}

// NewManager returns a manager without any probe.
func NewManager(config Config) *Manager {
	m := &Manager{config: config, workers: map[probeKey]*worker{}, total: prometheus.NewCounterVec(
		prometheus.CounterOpts{Name: "prober_probe_total", Help: "How many probes a container had, by type and result."},
		[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})}
	config.Registerer.MustRegister(m.total)
	return m
}

// UpdatePod starts the pod's probes of these kinds, and stops its other probes. Probes of unchanged
// containers continue. All probes stop when ctx ends. If status shows a container as not ready, the
// container's readiness probe runs at once.
func (m *Manager) UpdatePod(ctx context.Context, pod *v1.Pod, status *v1.PodStatus, kinds ...plan.ProbeKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, w := range m.workers {
		if key.podUID == pod.UID && !(slices.Contains(kinds, key.kind) &&
			equality.Semantic.DeepEqual(w.container, plan.Find(pod, key.container))) {
			w.stop()
			delete(m.workers, key)
		}
	}
	for _, c := range plan.Containers(pod) {
		for _, kind := range kinds {
			key := probeKey{pod.UID, c.Name, kind}
			w := m.workers[key]
			if spec := plan.Probe(c, kind); w == nil && spec != nil {
				life, stop := context.WithCancel(ctx)
				w = &worker{probeManager: m, key: key, pod: pod, container: c, spec: spec, stop: stop,
					manualTriggerCh: make(chan struct{}, 1)}
				m.workers[key] = w
				m.config.Go(func() { w.run(life) })
			}
			if w != nil && kind == plan.Readiness && !plan.FindStatus(status, c.Name).Ready {
				select {
				case w.manualTriggerCh <- struct{}{}:
				default:
				}
			}
		}
	}
}

// Result returns the result of a probe of the container with the given ID. It returns
// ConditionUnknown if there is no result yet.
func (m *Manager) Result(kind plan.ProbeKind, containerID string) v1.ConditionStatus {
	return m.results.get(kind, containerID)
}
