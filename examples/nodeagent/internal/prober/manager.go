// Package prober probes containers: liveness, readiness, startup. It has one goroutine per probe, and keeps the
// result of each for the sync loop and the status.
package prober

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// Kind is the kind of a probe.
type Kind string

// The kinds of probes.
const (
	Liveness  Kind = "liveness"
	Readiness Kind = "readiness"
	Startup   Kind = "startup"
)

// Executor runs commands in containers. An error means that the command did not run to its end; ErrTimeout among them
// that it had started.
type Executor interface {
	Exec(ctx context.Context, id pleg.ContainerID, command []string, timeout time.Duration) (string, int, error)
}

// Config is what a Manager needs.
type Config struct {
	Exec Executor
	// Status returns the status of a pod as it was last set.
	Status func(uid types.UID) (v1.PodStatus, bool)
	// Changed is called when a result changes, without a lock held. It must not block.
	Changed func(pod *v1.Pod, kind Kind, success bool)
	Logger  klog.Logger
}

// Manager has the probes of all pods. Its methods are safe for concurrent use.
type Manager struct {
	Config
	began time.Time // set once by New
	total *prometheus.CounterVec

	mu      sync.Mutex
	workers map[workerKey]*worker // guarded by mu
	results map[resultKey]bool    // success; guarded by mu
	joined  sync.WaitGroup
}

type workerKey struct {
	uid       types.UID
	container string
	kind      Kind
}

type resultKey struct {
	id   string // the container's, with the runtime's prefix
	kind Kind
}

// New returns a manager without probes. Its metrics are registered on registerer.
func New(config Config, registerer prometheus.Registerer) *Manager {
	return &Manager{Config: config, began: time.Now(), total: newTotal(registerer),
		workers: map[workerKey]*worker{}, results: map[resultKey]bool{}}
}

// Add begins to probe a pod as its specification says. For a pod that is probed already, the probes that changed
// begin anew. What earlier statuses say of a running container is taken for its first result: an agent that starts
// again makes no container unready.
func (m *Manager) Add(ctx context.Context, pod *v1.Pod) {
	status, _ := m.Status(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted := map[workerKey]bool{}
	for _, c := range plan.Containers(pod) {
		for kind, probe := range probesOf(c) {
			if probe == nil {
				continue
			}
			key := workerKey{pod.UID, c.Name, kind}
			wanted[key] = true
			w := m.workers[key]
			if w != nil && w.same(c, probe) {
				continue
			}
			if w != nil {
				w.stop()
			} else {
				m.adoptLocked(key, statusOf(&status, c.Name))
			}
			m.workers[key] = m.startLocked(ctx, key, pod, c, probe)
		}
	}
	m.dropLocked(func(key workerKey) bool { return key.uid == pod.UID && !wanted[key] })
}

func probesOf(c *v1.Container) map[Kind]*v1.Probe {
	return map[Kind]*v1.Probe{Liveness: c.LivenessProbe, Readiness: c.ReadinessProbe, Startup: c.StartupProbe}
}

// adoptLocked takes over the result of a container that ran when the agent began.
func (m *Manager) adoptLocked(key workerKey, c *v1.ContainerStatus) {
	if c == nil || c.State.Running == nil || !c.State.Running.StartedAt.Time.Before(m.began) {
		return
	}
	if key.kind == Readiness && c.Ready || key.kind == Startup && c.Started != nil && *c.Started {
		m.results[resultKey{c.ContainerID, key.kind}] = true
	}
}

func (m *Manager) startLocked(ctx context.Context, key workerKey, pod *v1.Pod, c *v1.Container, p *v1.Probe) *worker {
	ctx, stop := context.WithCancel(ctx)
	w := &worker{manager: m, key: key, pod: pod, container: c, probe: p, stop: stop, kick: make(chan struct{}, 1)}
	m.joined.Go(func() { w.run(ctx) })
	return w
}

// Remove ends the probes of a pod.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLocked(func(key workerKey) bool { return key.uid == uid })
}

// Quiet ends the probes that could kill a container of a pod: the pod is being terminated. Its readiness is still
// probed.
func (m *Manager) Quiet(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLocked(func(key workerKey) bool { return key.uid == uid && key.kind != Readiness })
}

func (m *Manager) dropLocked(which func(workerKey) bool) {
	for key, w := range m.workers {
		if which(key) {
			w.stop()
			delete(m.workers, key)
			m.total.DeletePartialMatch(w.labels())
		}
	}
}

// Wait returns when every probe has ended. The contexts of Add must have ended.
func (m *Manager) Wait() { m.joined.Wait() }

// set stores a result, and reports it if it is another than before.
func (m *Manager) set(w *worker, id string, success bool) {
	m.mu.Lock()
	if m.workers[w.key] != w {
		m.mu.Unlock()
		return // it was stopped meanwhile
	}
	old, known := m.results[resultKey{id, w.key.kind}]
	m.results[resultKey{id, w.key.kind}] = success
	m.mu.Unlock()
	if !known || old != success {
		m.Changed(w.pod, w.key.kind, success)
	}
}

func (m *Manager) result(id string, kind Kind) (success, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	success, known = m.results[resultKey{id, kind}]
	return success, known
}

// forget drops the result of a container that is no more.
func (m *Manager) forget(id string, kind Kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.results, resultKey{id, kind})
}

// Failed implements plan.Probes.
func (m *Manager) Failed(id pleg.ContainerID) string {
	for _, kind := range []Kind{Liveness, Startup} {
		if success, known := m.result(id.String(), kind); known && !success {
			return string(kind)
		}
	}
	return ""
}

// Started implements plan.Probes.
func (m *Manager) Started(c *v1.Container, id pleg.ContainerID) bool {
	success, _ := m.result(id.String(), Startup)
	return success || c.StartupProbe == nil
}

// SetReadiness sets Started and Ready in the container statuses of a pod.
func (m *Manager) SetReadiness(pod *v1.Pod, status *v1.PodStatus) {
	for i := range status.InitContainerStatuses {
		s := &status.InitContainerStatuses[i]
		m.setReadiness(pod, s)
		if c := plan.Find(pod, s.Name); c != nil && !plan.IsSidecar(c) {
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		}
	}
	for i := range status.ContainerStatuses {
		m.setReadiness(pod, &status.ContainerStatuses[i])
	}
}

func (m *Manager) setReadiness(pod *v1.Pod, s *v1.ContainerStatus) {
	c := plan.Find(pod, s.Name)
	if c == nil {
		return
	}
	started, _ := m.result(s.ContainerID, Startup)
	started = s.State.Running != nil && (started || c.StartupProbe == nil)
	s.Started, s.Ready = &started, false
	switch {
	case !started:
	case c.ReadinessProbe == nil:
		s.Ready = true
	default:
		if s.Ready, _ = m.result(s.ContainerID, Readiness); !s.Ready {
			m.kick(workerKey{pod.UID, s.Name, Readiness})
		}
	}
}

// kick has a container probed now that is not known to be ready.
func (m *Manager) kick(key workerKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[key]; w != nil {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

// statusOf returns the status of a container by name, nil if there is none.
func statusOf(status *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
