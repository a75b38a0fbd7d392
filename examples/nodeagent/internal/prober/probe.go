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
	// Set once by Add.
	*Manager
	key
	*v1.Probe
	pod  *v1.Pod
	spec *v1.Container
	stop context.CancelFunc
	kick chan struct{} // asks for a probe now

	// Written by run; guarded by the manager's mu.
	id      string // of the container that is probed
	outcome plan.Outcome

	// Owned by run.
	last  plan.Outcome // the last result
	count int32        // how many were the same
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
	// A startup probe holds the others back, and ends once it has succeeded.
	wanted := (p.kind == plan.Startup) != ptr.Deref(s.Started, false)
	delay := time.Duration(p.InitialDelaySeconds) * time.Second
	if !wanted || p.decided() || time.Since(s.State.Running.StartedAt.Time) < delay {
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
	p.id, p.outcome, p.count = s.ContainerID, plan.Unknown, 0
	if map[plan.ProbeKind]bool{
		plan.Liveness: true, plan.Readiness: s.Ready, plan.Startup: ptr.Deref(s.Started, false),
	}[p.kind] {
		p.outcome = plan.Success
	}
}

// decided reports whether nothing more is to be learned of a container: it has started, or it is about to be killed.
func (p *probe) decided() bool {
	return p.kind == plan.Startup && p.outcome != plan.Unknown || p.kind == plan.Liveness && p.outcome == plan.Failure
}

// take takes in a result. It becomes the outcome if as many in a row were the same as the threshold says.
func (p *probe) take(err error) {
	result, threshold := plan.Success, p.SuccessThreshold
	if err != nil {
		p.logger.V(1).Info("A probe failed", "pod", klog.KObj(p.pod), "container", p.container, "probe", p.kind, "err", err)
		result, threshold = plan.Failure, p.FailureThreshold
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
