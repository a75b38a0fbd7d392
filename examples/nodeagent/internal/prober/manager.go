// Package prober probes containers: liveness, readiness, startup. It has one goroutine per probe, and keeps what each
// has shown for the plan and the status.
package prober

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// Manager has the probes of all pods. Its methods are safe for concurrent use.
type Manager struct {
	runtime *runtime.Client
	status  func(types.UID) v1.PodStatus
	changed func(types.UID)
	logger  klog.Logger

	mu     sync.Mutex
	probes map[key]*probe // guarded by mu
	joined sync.WaitGroup
}

type key struct {
	uid       types.UID
	container string
	kind      plan.ProbeKind
}

// New returns a manager without probes. status returns the status of a pod that was published last. changed is called
// without a lock held when an outcome changes.
func New(client *runtime.Client, status func(types.UID) v1.PodStatus, changed func(types.UID),
	logger klog.Logger) *Manager {
	return &Manager{runtime: client, status: status, changed: changed, logger: logger, probes: map[key]*probe{}}
}

// Set has a pod probed as its specification says, with probes of these kinds, until ctx ends. The probes of containers
// that are as they were go on.
func (m *Manager) Set(ctx context.Context, pod *v1.Pod, kinds ...plan.ProbeKind) {
	status := m.status(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, p := range m.probes {
		if k.uid == pod.UID && !(slices.Contains(kinds, k.kind) &&
			equality.Semantic.DeepEqual(p.spec, plan.Find(pod, k.container))) {
			p.stop()
			delete(m.probes, k)
		}
	}
	for _, c := range plan.Containers(pod) {
		for _, kind := range kinds {
			k := key{pod.UID, c.Name, kind}
			if plan.Probe(c, kind) == nil || m.probes[k] != nil {
				continue
			}
			p := &probe{Manager: m, key: k, pod: pod, spec: c, Probe: plan.Probe(c, kind), kick: make(chan struct{}, 1)}
			if s := plan.FindStatus(&status, c.Name); s != nil {
				p.beginLocked(s)
			}
			m.probes[k] = p
			life, stop := context.WithCancel(ctx)
			p.stop = stop
			m.joined.Go(func() { p.run(life) })
		}
	}
}

// Wait returns when every probe has ended. The contexts of Set must have ended.
func (m *Manager) Wait() { m.joined.Wait() }

// Outcome returns what a probe has shown of the container with an ID.
func (m *Manager) Outcome(uid types.UID, container string, kind plan.ProbeKind, id string) v1.ConditionStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.probes[key{uid, container, kind}]; p != nil && p.id == id {
		return p.outcome
	}
	return v1.ConditionUnknown
}

// Hurry has the containers probed now that are not ready by a status of their pod.
func (m *Manager) Hurry(uid types.UID, status *v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
		if p := m.probes[key{uid, s.Name, plan.Readiness}]; p != nil && !s.Ready {
			select {
			case p.kick <- struct{}{}:
			default:
			}
		}
	}
}
