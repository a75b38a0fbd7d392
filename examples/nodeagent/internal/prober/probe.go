package prober

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// probe is one probe of one container.
type probe struct {
	// Set once by Set.
	*Manager
	key
	*v1.Probe
	pod  *v1.Pod
	spec *v1.Container
	stop context.CancelFunc
	kick chan struct{} // asks for a probe now

	// Written by run; guarded by the manager's mu.
	id      string // of the container that is probed
	outcome v1.ConditionStatus

	// Owned by run.
	last  v1.ConditionStatus // the last result
	count int32              // how many were the same
}

// run probes until the context ends.
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

// once probes the container, if it is to be probed.
func (p *probe) once(ctx context.Context) {
	status := p.status(p.uid)
	s := plan.FindStatus(&status, p.container)
	if s == nil || s.State.Running == nil {
		return
	}
	if p.id != s.ContainerID {
		p.mu.Lock()
		p.beginLocked(s)
		p.mu.Unlock()
	}
	delay := time.Duration(p.InitialDelaySeconds) * time.Second
	switch started := ptr.Deref(s.Started, false); {
	case started == (p.kind == plan.Startup): // it holds the others back, and ends once it has succeeded
		return
	case p.kind != plan.Readiness && p.outcome == v1.ConditionFalse: // the container is about to be killed
		return
	case time.Since(s.State.Running.StartedAt.Time) < delay:
		return
	}
	id, _ := pleg.ParseContainerID(p.id)
	target := handler.Target{Runtime: p.runtime, Container: p.spec, ID: id.ID, PodIP: status.PodIP}
	if err := target.Probe(ctx, p.Probe); ctx.Err() == nil {
		p.take(err)
	}
}

// beginLocked begins with another container than before. What the status says of it holds until the probe shows
// something else: an agent that starts again makes no container unready. A container is live until it is not.
func (p *probe) beginLocked(s *v1.ContainerStatus) {
	p.id, p.outcome, p.count = s.ContainerID, v1.ConditionUnknown, 0
	if p.kind == plan.Liveness || p.kind == plan.Readiness && s.Ready ||
		p.kind == plan.Startup && ptr.Deref(s.Started, false) {
		p.outcome = v1.ConditionTrue
	}
}

// take takes in a result. It becomes the outcome if as many in a row were the same as the threshold says.
func (p *probe) take(err error) {
	result, threshold := v1.ConditionTrue, p.SuccessThreshold
	if err != nil {
		p.logger.V(1).Info("A probe failed", "pod", klog.KObj(p.pod), "container", p.container, "probe", p.kind, "err", err)
		result, threshold = v1.ConditionFalse, p.FailureThreshold
	}
	if errors.Is(err, handler.ErrNotMade) {
		return // which counts for nothing
	}
	if p.last != result {
		p.last, p.count = result, 0
	}
	if p.count++; p.count < threshold {
		return
	}
	p.mu.Lock()
	changed := p.outcome != result && p.probes[p.key] == p // else it was stopped meanwhile
	if changed {
		p.outcome = result
	}
	p.mu.Unlock()
	if changed {
		p.changed(p.uid)
	}
}
