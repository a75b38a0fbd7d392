// Package prober probes containers: liveness, readiness, startup. It has one goroutine per probe, and keeps the
// result of each for the sync loop and the status.
package prober

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// Config is what a Manager needs.
type Config struct {
	Runtime *runtime.Client // for commands in containers
	// Status returns the status of a pod as it was last set.
	Status func(uid types.UID) v1.PodStatus
	// Changed is called when a result changes, without a lock held. It must not block.
	Changed func(pod *v1.Pod, kind plan.ProbeKind, success bool)
	Logger  klog.Logger
}

// Manager has the probes of all pods. Its methods are safe for concurrent use.
type Manager struct {
	Config
	began time.Time              // set once by New
	total *prometheus.CounterVec // the kubelet's; set once by New

	mu      sync.Mutex
	workers map[workerKey]*worker // guarded by mu
	joined  sync.WaitGroup
}

type workerKey struct {
	uid       types.UID
	container string
	kind      plan.ProbeKind
}

// outcome is the result of a probe that counts: after as many in a row as its thresholds say.
type outcome int

const (
	unknown outcome = iota
	failure
	success
)

// New returns a manager without probes. Its metrics are registered on registerer.
func New(config Config, registerer prometheus.Registerer) *Manager {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total",
		Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	registerer.MustRegister(total)
	return &Manager{Config: config, began: time.Now(), total: total, workers: map[workerKey]*worker{}}
}

// Add begins to probe a pod as its specification says. For a pod that is probed already, the probes that changed
// begin anew. What earlier statuses say of a running container is taken for its first result: an agent that starts
// again makes no container unready.
func (m *Manager) Add(ctx context.Context, pod *v1.Pod) {
	status := m.Status(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted := map[workerKey]bool{}
	for _, c := range plan.Containers(pod) {
		for _, kind := range plan.ProbeKinds {
			probe, key := plan.Probe(c, kind), workerKey{pod.UID, c.Name, kind}
			if probe == nil {
				continue
			}
			wanted[key] = true
			w := &worker{manager: m, key: key, pod: pod, container: c, probe: probe, kick: make(chan struct{}, 1)}
			switch old := m.workers[key]; {
			case old == nil:
				w.adopt(plan.FindStatus(&status, c.Name))
			case reflect.DeepEqual(old.probe, probe) && reflect.DeepEqual(old.container.Ports, c.Ports):
				continue
			default:
				old.stop()
			}
			m.workers[key] = w
			life, stop := context.WithCancel(ctx)
			w.stop = stop
			m.joined.Go(func() { w.run(life) })
		}
	}
	m.dropLocked(func(key workerKey) bool { return key.uid == pod.UID && !wanted[key] })
}

// Remove ends the probes of a pod, of these kinds.
func (m *Manager) Remove(uid types.UID, kinds ...plan.ProbeKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLocked(func(key workerKey) bool { return key.uid == uid && slices.Contains(kinds, key.kind) })
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

// set stores the outcome for a container, and reports it if it is another than before.
func (m *Manager) set(w *worker, id string, o outcome) {
	m.mu.Lock()
	changed := m.workers[w.key] == w && (w.id != id || w.outcome != o) // else it was stopped meanwhile
	if changed {
		w.id, w.outcome = id, o
	}
	m.mu.Unlock()
	if changed && o != unknown {
		m.Changed(w.pod, w.key.kind, o == success)
	}
}

// outcome returns what counts for the container with an ID.
func (m *Manager) outcome(uid types.UID, container string, kind plan.ProbeKind, id string) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[workerKey{uid, container, kind}]; w != nil && w.id == id {
		return w.outcome
	}
	return unknown
}

// Failed implements plan.Probes.
func (m *Manager) Failed(pod *v1.Pod, c *v1.Container, id pleg.ContainerID) plan.ProbeKind {
	for _, kind := range []plan.ProbeKind{plan.Liveness, plan.Startup} {
		if m.outcome(pod.UID, c.Name, kind, id.String()) == failure {
			return kind
		}
	}
	return ""
}

// Started implements plan.Probes.
func (m *Manager) Started(pod *v1.Pod, c *v1.Container, id pleg.ContainerID) bool {
	return c.StartupProbe == nil || m.outcome(pod.UID, c.Name, plan.Startup, id.String()) == success
}

// SetReadiness sets Started and Ready in the container statuses of a pod.
func (m *Manager) SetReadiness(pod *v1.Pod, status *v1.PodStatus) {
	for i, c := range plan.Containers(pod) {
		s := plan.FindStatus(status, c.Name)
		if s == nil {
			continue
		}
		succeeds := func(kind plan.ProbeKind) bool {
			return plan.Probe(c, kind) == nil || m.outcome(pod.UID, c.Name, kind, s.ContainerID) == success
		}
		started := s.State.Running != nil && succeeds(plan.Startup)
		s.Started, s.Ready = &started, started && succeeds(plan.Readiness)
		switch {
		case i < len(pod.Spec.InitContainers) && !plan.IsSidecar(c):
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		case started && !s.Ready:
			m.kick(workerKey{pod.UID, c.Name, plan.Readiness})
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
