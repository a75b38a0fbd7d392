package prober

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// worker is one probe of one container.
type worker struct {
	// Set once by Add.
	manager   *Manager
	key       workerKey
	pod       *v1.Pod
	container *v1.Container
	probe     *v1.Probe
	stop      context.CancelFunc
	kick      chan struct{} // asks for a probe now

	// Set by run through Manager.set; guarded by the manager's mu.
	id      string // of the container that is probed
	outcome outcome

	// Owned by run.
	onHold bool    // until the container is another
	last   outcome // the last result
	count  int     // how many were the same
}

// adopt takes over the outcome of a container that ran when the agent began.
func (w *worker) adopt(c *v1.ContainerStatus) {
	if c == nil || c.State.Running == nil || !c.State.Running.StartedAt.Time.Before(w.manager.began) {
		return
	}
	if w.key.kind == plan.Readiness && c.Ready || w.key.kind == plan.Startup && c.Started != nil && *c.Started {
		w.id, w.outcome = c.ContainerID, success
	}
}

// run probes until the context ends.
func (w *worker) run(ctx context.Context) {
	period := time.Duration(w.probe.PeriodSeconds) * time.Second
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for w.once(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
			ticker.Reset(period)
		case <-ticker.C:
		}
	}
}

// once probes the container, if it is to be probed, and reports whether to go on.
func (w *worker) once(ctx context.Context) bool {
	status := w.manager.Status(w.pod.UID)
	if status.Phase == v1.PodSucceeded || status.Phase == v1.PodFailed {
		return false
	}
	c := plan.FindStatus(&status, w.key.container)
	if c == nil || c.ContainerID == "" {
		return true
	}
	if w.id != c.ContainerID {
		w.begin(c.ContainerID)
	}
	switch {
	case w.onHold:
		return true
	case c.State.Running == nil:
		w.manager.set(w, w.id, failure)
		ended := c.State.Terminated != nil && w.pod.Spec.RestartPolicy == v1.RestartPolicyNever
		return !ended || plan.IsSidecar(w.container)
	case time.Since(c.State.Running.StartedAt.Time) < time.Duration(w.probe.InitialDelaySeconds)*time.Second:
		return true
	}
	// A startup probe holds the others back, and ends once it has succeeded.
	if started := c.Started != nil && *c.Started; started == (w.key.kind == plan.Startup) {
		return true
	}
	err := w.check(ctx, status.PodIP)
	if ctx.Err() != nil {
		return false
	}
	w.take(err)
	return true
}

// begin begins with another container than before. Readiness is a failure until it is shown, liveness a success until
// it is not, and startup unknown.
func (w *worker) begin(id string) {
	w.onHold, w.count = false, 0
	w.manager.set(w, id, map[plan.ProbeKind]outcome{plan.Readiness: failure, plan.Liveness: success}[w.key.kind])
}

// take takes in what check returned: the result is counted, and becomes the outcome at the threshold.
func (w *worker) take(err error) {
	result, label, threshold := unknown, "unknown", int32(0)
	switch {
	case err == nil:
		result, label, threshold = success, "successful", w.probe.SuccessThreshold
	case errors.Is(err, handler.ErrFailed):
		result, label, threshold = failure, "failed", w.probe.FailureThreshold
	}
	w.manager.total.MustCurryWith(w.labels()).WithLabelValues(label).Inc()
	if err != nil {
		w.manager.Logger.V(1).Info("A probe failed", "pod", klog.KObj(w.pod), "container", w.key.container,
			"probe", w.key.kind, "err", err)
	}
	if result == unknown {
		return // it could not be made, which counts for nothing
	}
	if w.last != result {
		w.count = 0
	}
	w.last = result
	w.count++
	if w.count < int(threshold) {
		return
	}
	w.manager.set(w, w.id, result)
	if w.key.kind == plan.Startup || w.key.kind == plan.Liveness && result == failure {
		// The container has started, or it is about to be killed.
		w.onHold, w.count = true, 0
	}
}

// check makes the probe. The error wraps handler.ErrFailed if the container failed it, as opposed to one that could not
// be made.
func (w *worker) check(ctx context.Context, podIP string) error {
	p, timeout := w.probe, time.Duration(w.probe.TimeoutSeconds)*time.Second
	if p.Exec != nil {
		id, err := pleg.ParseContainerID(w.id)
		if err != nil {
			return err
		}
		return handler.Exec(ctx, w.manager.Runtime, id.ID, p.Exec, timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return handler.HTTP(ctx, w.container, p.HTTPGet, podIP, handler.ProbeAgent)
	case p.TCPSocket != nil:
		return handler.TCP(ctx, w.container, p.TCPSocket, podIP)
	default:
		return handler.GRPC(ctx, w.container, p.GRPC, podIP)
	}
}

// labels returns the labels of a probe, but for the result.
func (w *worker) labels() prometheus.Labels {
	kind := map[plan.ProbeKind]string{plan.Liveness: "Liveness", plan.Readiness: "Readiness", plan.Startup: "Startup"}
	return prometheus.Labels{
		"probe_type": kind[w.key.kind], "container": w.key.container,
		"pod": w.pod.Name, "namespace": w.pod.Namespace, "pod_uid": string(w.key.uid),
	}
}
