package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// leastGrace is what a container gets to end in, even if its preStop hook has used up the grace period; hookTimeout
// bounds an HTTP hook that is not bounded by a grace period.
const leastGrace, hookTimeout = 2 * time.Second, time.Minute

// graceOf returns the grace period of a container that is ended because of a probe, or not.
func graceOf(pod *v1.Pod, c *v1.Container, probe plan.ProbeKind) time.Duration {
	seconds := *pod.Spec.TerminationGracePeriodSeconds
	if p := plan.Probe(c, probe); p != nil && p.TerminationGracePeriodSeconds != nil {
		seconds = *p.TerminationGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// killPod ends everything in a pod: the containers at once, then the sidecars one after another in reverse order,
// then the sandboxes. All share one grace period.
func (w *worker) killPod(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) error {
	over := time.Now().Add(time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second)
	kill := func(s *pleg.Status) error { return w.killContainer(ctx, pod, s, time.Until(over)) }
	var containers []*pleg.Status
	sidecars := map[string][]*pleg.Status{}
	for _, s := range seen.ContainerStatuses {
		c := plan.Find(pod, s.Name)
		switch {
		case s.State != pleg.ContainerStateRunning && s.State != pleg.ContainerStateUnknown:
		case c != nil && plan.IsSidecar(c):
			sidecars[s.Name] = append(sidecars[s.Name], s)
		default:
			containers = append(containers, s)
		}
	}
	if err := each(containers, kill); err != nil {
		return err
	}
	for _, c := range slices.Backward(pod.Spec.InitContainers) {
		if err := each(sidecars[c.Name], kill); err != nil {
			return err
		}
	}
	return each(seen.SandboxStatuses, func(s *runtimeapi.PodSandboxStatus) error {
		if s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			return nil
		}
		return w.Runtime.StopPodSandbox(ctx, s.GetId())
	})
}

// killContainer runs a container's preStop hook and ends it within the grace period.
func (w *worker) killContainer(ctx context.Context, pod *v1.Pod, s *pleg.Status, grace time.Duration) error {
	over := time.Now().Add(grace)
	c := plan.Find(pod, s.Name)
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 {
		hookCtx, cancel := context.WithDeadline(ctx, over)
		err := w.hook(hookCtx, c, c.Lifecycle.PreStop, s.ID.ID, grace)
		cancel()
		if err != nil {
			w.Logger.Error(err, "A preStop hook failed", "pod", klog.KObj(pod), "container", s.Name)
		}
	}
	return w.Runtime.StopContainer(ctx, s.ID.ID, max(time.Until(over), leastGrace))
}

// hook runs a lifecycle hook in a container. A command ends after limit; if that is 0, when the call for it does.
func (w *worker) hook(ctx context.Context, c *v1.Container, h *v1.LifecycleHandler, id string,
	limit time.Duration) error {
	switch {
	case h.Exec != nil:
		return handler.Exec(ctx, w.Runtime, id, h.Exec, limit)
	case h.HTTPGet != nil:
		ctx, cancel := context.WithTimeout(ctx, hookTimeout)
		defer cancel()
		return handler.HTTP(ctx, c, h.HTTPGet, w.Status.Get(w.uid).PodIP, handler.HookAgent)
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
		}
		return nil
	}
	return errors.New("it has no handler")
}
