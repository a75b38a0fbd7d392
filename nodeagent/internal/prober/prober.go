// Package prober probes containers, with a goroutine for each probe. It keeps the outcomes for the
// packages plan and status.
package prober

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

// Manager runs the probes of all pods. Its exported fields must be set before the first call. Its
// methods are safe for concurrent use.
type Manager struct {
	Runtime *runtime.Client
	Status  func(types.UID) v1.Pod // returns a pod with its last published status
	Changed func(types.UID)        // called when an outcome changes, without a lock held
	Begin   func(func())           // runs a function in a goroutine until the context of Set ends
	Logger  klog.Logger

	mu     sync.Mutex
	probes map[key]*probe // guarded by mu
}

type key struct {
	uid       types.UID
	container string
	kind      plan.ProbeKind
}

// Set starts the pod's probes of these kinds, and stops its other probes. Probes of unchanged
// containers continue. All probes stop when ctx ends. If status shows a container as not ready, the
// container's readiness probe runs at once.
func (m *Manager) Set(ctx context.Context, pod *v1.Pod, status *v1.PodStatus, kinds ...plan.ProbeKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.probes == nil {
		m.probes = map[key]*probe{}
	}
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
			p := m.probes[k]
			if p == nil && plan.Probe(c, kind) != nil {
				p = &probe{Manager: m, key: k, pod: pod, spec: c, Probe: plan.Probe(c, kind), kick: make(chan struct{}, 1)}
				m.probes[k] = p
				life, stop := context.WithCancel(ctx)
				p.stop = stop
				m.Begin(func() { p.run(life) })
			}
			if p != nil && kind == plan.Readiness && !plan.FindStatus(status, c.Name).Ready {
				select {
				case p.kick <- struct{}{}:
				default:
				}
			}
		}
	}
}

// Outcome returns the outcome of a probe of the container with the given ID. It returns
// ConditionUnknown if there is no outcome.
func (m *Manager) Outcome(uid types.UID, container string, kind plan.ProbeKind, id string) v1.ConditionStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.probes[key{uid, container, kind}]; p != nil && p.id == id {
		return p.outcome
	}
	return v1.ConditionUnknown
}

// probe is one probe of one container.
type probe struct {
	// Set once by Manager.Set.
	*Manager
	key
	*v1.Probe
	pod  *v1.Pod
	spec *v1.Container
	stop context.CancelFunc
	kick chan struct{} // makes the probe run at once

	// Only the goroutine of the method run writes these fields. The manager's mu guards them.
	id      string // ID of the probed container
	outcome v1.ConditionStatus

	// Only the goroutine of the method run uses these fields.
	last  v1.ConditionStatus // the last result
	count int32              // how many results in a row were the same
}

// run probes the container until ctx ends.
func (p *probe) run(ctx context.Context) {
	period := time.Duration(p.PeriodSeconds) * time.Second
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		p.once(ctx)
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
			ticker.Reset(period)
		case <-ticker.C:
		}
	}
}

// once makes a single probe of the container, if a probe is due.
func (p *probe) once(ctx context.Context) {
	status := p.Status(p.uid).Status
	s := plan.FindStatus(&status, p.container)
	if s == nil || s.State.Running == nil {
		return
	}
	if p.id != s.ContainerID {
		p.mu.Lock()
		p.id, p.outcome, p.count = s.ContainerID, v1.ConditionUnknown, 0
		p.mu.Unlock()
	}
	switch started := ptr.Deref(s.Started, false); {
	// Until the startup probe has succeeded, no other probe runs. After that, the startup probe no
	// longer runs.
	case started == (p.kind == plan.Startup):
		return
	case p.kind != plan.Readiness && p.outcome == v1.ConditionFalse: // the container is about to be killed
		return
	case time.Since(s.State.Running.StartedAt.Time) < time.Duration(p.InitialDelaySeconds)*time.Second:
		return
	}
	_, id, _ := strings.Cut(p.id, "://")
	target := handler.Target{Runtime: p.Runtime, Container: p.spec, ID: id, PodIP: status.PodIP}
	if err := target.Probe(ctx, p.Probe); ctx.Err() == nil {
		p.take(err)
	}
}

// take records a result. When enough results in a row are equal, the result becomes the outcome.
func (p *probe) take(err error) {
	result, threshold := v1.ConditionTrue, p.SuccessThreshold
	if err != nil {
		p.Logger.V(1).Info("A probe failed", "pod", klog.KObj(p.pod), "container", p.container, "probe", p.kind, "err", err)
		result, threshold = v1.ConditionFalse, p.FailureThreshold
	}
	if errors.Is(err, handler.ErrNotMade) {
		return // a probe that could not be made gives no result
	}
	if p.last != result {
		p.last, p.count = result, 0
	}
	if p.count++; p.count < threshold {
		return
	}
	p.mu.Lock()
	changed := p.outcome != result && p.probes[p.key] == p // unless the probe was stopped
	if changed {
		p.outcome = result
	}
	p.mu.Unlock()
	if changed {
		p.Changed(p.uid)
	}
}
