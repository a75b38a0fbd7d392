package prober

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// worker runs one probe of one container, in a goroutine of its own.
type worker struct {
	// Set once by UpdatePod.
	probeManager    *Manager
	key             probeKey
	pod             *v1.Pod
	container       *v1.Container
	spec            *v1.Probe
	stop            context.CancelFunc
	manualTriggerCh chan struct{} // makes the probe run at once

	// Only the goroutine of run uses these fields.
	containerID string // the probed instance, as in the pod's status
	lastResult  v1.ConditionStatus
	resultRun   int32 // how many results in a row were the same
	// onHold is true if the instance needs no further probe: it is about to be ended, or its startup
	// probe has succeeded.
	onHold bool
}

// run probes the container until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer func() {
		w.probeManager.results.remove(w.key.kind, w.containerID)
		w.probeManager.total.DeletePartialMatch(w.labels())
	}()
	period := time.Duration(w.spec.PeriodSeconds) * time.Second
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		w.doProbe(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.manualTriggerCh:
			ticker.Reset(period)
		case <-ticker.C:
		}
	}
}

// labels returns the labels of the worker's metrics, except the result.
func (w *worker) labels() prometheus.Labels {
	kind := string(w.key.kind)
	return prometheus.Labels{"probe_type": strings.ToUpper(kind[:1]) + kind[1:], "container": w.key.container,
		"pod": w.pod.Name, "namespace": w.pod.Namespace, "pod_uid": string(w.pod.UID)}
}

// doProbe probes the container once, if a probe is due.
func (w *worker) doProbe(ctx context.Context) {
	config := &w.probeManager.config
	status := config.GetPod(w.key.podUID).Status
	s := plan.FindStatus(&status, w.key.container)
	if s == nil || s.State.Running == nil {
		return
	}
	if w.containerID != s.ContainerID {
		w.probeManager.results.remove(w.key.kind, w.containerID)
		w.containerID, w.resultRun, w.onHold = s.ContainerID, 0, false
	}
	switch started := ptr.Deref(s.Started, false); {
	case w.onHold:
		return
	// Until the startup probe has succeeded, no other probe runs. After that, the startup probe no
	// longer runs.
	case started == (w.key.kind == plan.Startup):
		return
	case config.Clock.Since(s.State.Running.StartedAt.Time) < time.Duration(w.spec.InitialDelaySeconds)*time.Second:
		return
	}
	_, id, _ := strings.Cut(w.containerID, "://")
	target := handler.Target{Runtime: config.Runtime, Container: w.container, ID: id, PodIP: status.PodIP}
	if err := target.Probe(ctx, w.spec); ctx.Err() == nil {
		w.record(err)
	}
}

// record counts a probe. When enough probes in a row have shown the same, it sets the result.
func (w *worker) record(err error) {
	config, labels := &w.probeManager.config, w.labels()
	result, threshold := v1.ConditionTrue, w.spec.SuccessThreshold
	labels["result"] = "successful"
	if err != nil {
		config.Logger.V(1).Info("A probe failed", "pod", klog.KObj(w.pod), "container", w.key.container,
			"probe", w.key.kind, "err", err)
		result, threshold = v1.ConditionFalse, w.spec.FailureThreshold
		labels["result"] = "failed"
	}
	if errors.Is(err, handler.ErrNotMade) {
		labels["result"] = "unknown"
	}
	w.probeManager.total.With(labels).Inc()
	if errors.Is(err, handler.ErrNotMade) {
		return // the probe shows nothing
	}
	if w.lastResult != result {
		w.lastResult, w.resultRun = result, 0
	}
	if w.resultRun++; w.resultRun < threshold {
		return
	}
	w.onHold = w.key.kind == plan.Startup || w.key.kind == plan.Liveness && result == v1.ConditionFalse
	if w.probeManager.results.set(w.key.kind, w.containerID, result) {
		config.OnUpdate(w.key.podUID)
	}
}
