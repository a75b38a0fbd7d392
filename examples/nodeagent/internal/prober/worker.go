package prober

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// attempts is how often a probe is tried that cannot be made.
const attempts = 3

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

	// Owned by run.
	id     string // of the container that is probed
	onHold bool   // until the container is another
	last   bool   // the last result
	count  int    // how many were the same
}

// same reports whether the worker probes as a container's specification says.
func (w *worker) same(c *v1.Container, p *v1.Probe) bool {
	return reflect.DeepEqual(w.probe, p) && reflect.DeepEqual(w.container.Ports, c.Ports)
}

// run probes until the context ends.
func (w *worker) run(ctx context.Context) {
	period := time.Duration(w.probe.PeriodSeconds) * time.Second
	if status, _ := w.manager.Status(w.pod.UID); w.manager.adopted(plan.FindStatus(&status, w.key.container)) {
		// An agent that starts again does not probe all of its containers at once.
		select {
		case <-time.After(rand.N(period)): //nolint:gosec // spreads load; not a secret
		case <-ctx.Done():
			return
		}
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	defer func() { w.manager.forget(w.id, w.key.kind) }()
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
	status, _ := w.manager.Status(w.pod.UID)
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
		w.manager.set(w, false)
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
	w.countProbe(err)
	if err != nil {
		w.manager.Logger.V(1).Info("A probe failed", "pod", klog.KObj(w.pod), "container", w.key.container,
			"probe", w.key.kind, "err", err)
	}
	if err == nil || errors.Is(err, handler.ErrFailed) { // one that could not be made counts for nothing
		w.take(err == nil)
	}
	return true
}

// begin begins with another container than before. Readiness is a failure until it is shown, liveness a success until
// it is not, and startup unknown.
func (w *worker) begin(id string) {
	if w.id != "" {
		w.manager.forget(w.id, w.key.kind)
	}
	w.id, w.onHold, w.count = id, false, 0
	if _, known := w.manager.result(id, w.key.kind); !known && w.key.kind != plan.Startup {
		w.manager.set(w, w.key.kind == plan.Liveness)
	}
}

// take counts a result, which becomes that of the container at the threshold.
func (w *worker) take(success bool) {
	if w.last != success {
		w.count = 0
	}
	w.last = success
	w.count++
	threshold := w.probe.FailureThreshold
	if success {
		threshold = w.probe.SuccessThreshold
	}
	if w.count < int(threshold) {
		return
	}
	w.manager.set(w, success)
	if w.key.kind == plan.Startup || w.key.kind == plan.Liveness && !success {
		// The container has started, or it is about to be killed.
		w.onHold, w.count = true, 0
	}
}

// check makes the probe. The error wraps handler.ErrFailed if the container failed it.
func (w *worker) check(ctx context.Context, podIP string) (err error) {
	for range attempts {
		err = w.checkOnce(ctx, podIP)
		if err == nil || errors.Is(err, handler.ErrFailed) {
			return err
		}
	}
	return err
}

func (w *worker) checkOnce(ctx context.Context, podIP string) error {
	p, timeout := w.probe, time.Duration(w.probe.TimeoutSeconds)*time.Second
	if p.Exec != nil {
		id, err := pleg.ParseContainerID(w.id)
		if err != nil {
			return err
		}
		return handler.Exec(ctx, w.manager.Exec, id, p.Exec, timeout)
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
