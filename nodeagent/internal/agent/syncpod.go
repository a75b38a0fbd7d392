package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

// leastGrace is the minimum grace period of a stop, even if the preStop hook has used up the
// container's grace period.
const leastGrace = 2 * time.Second

// act does the first possible action of a plan, and reports whether it did anything.
func (w *podWorker) act(ctx context.Context, view plan.View) (did bool, err error) {
	if !view.Unwanted && slices.ContainsFunc(view.Seen.ContainerStatuses, view.Unsettled) {
		if !view.Now.Before(w.reinspectAt) {
			w.reinspectAt = view.Now.Add(unsettledPeriod)
			w.agent.generator.RequestReinspect(w.uid)
		}
		w.requeue(w.reinspectAt)
		return false, nil
	}
	view.Listed = w.agent.generator.Pod(w.uid)
	a, now := plan.ComputePodActions(view), w.agent.Clock.Now
	switch {
	case len(a.Kill)+len(a.StopSandboxes) > 0:
		return true, w.killContainers(ctx, view, a)
	case a.CreateSandbox && w.sandboxes.IsInBackOffSinceUpdate("", now()):
		// An event of the failed or unsuitable sandbox may have woken the worker. The event must
		// not cause another attempt at once.
		w.requeue(now().Add(firstSandbox))
		return false, nil
	case a.CreateSandbox:
		if err = w.agent.Runtime.PrepareVolumes(view.Pod); err != nil {
			return false, err // the pod waits without a sandbox, as in the kubelet
		}
		_, err = w.agent.Runtime.RunPodSandbox(ctx, view.Pod, a.Attempt)
		w.sandboxes.Next("", now())
		return true, err
	}
	for _, c := range a.Start {
		started, failed := w.startContainer(ctx, view, c)
		err = errors.Join(err, failed)
		if started {
			return true, err
		}
	}
	if view.Unwanted {
		return w.removePod(ctx, view, a)
	}
	w.agent.containerDeletor.deleteContainersInPod(view.Pod, view.Seen, false)
	if len(a.RemoveSandboxes) > 0 {
		left := w.removeSandboxes(ctx, a)
		if left == nil {
			return true, nil
		}
		w.agent.Logger.V(1).Info("A dead sandbox could not be removed", "pod", klog.KObj(view.Pod), "err", left)
	}
	return false, err
}

// removePod removes what is left of an unwanted pod, step by step. All its containers have ended.
func (w *podWorker) removePod(ctx context.Context, view plan.View, a plan.PodActions) (did bool, err error) {
	// Remove the status first. If the agent is killed now, the next agent must not use this status
	// for a new pod.
	w.locked(func() { w.hidden = true })
	if err = w.agent.statusManager.DeletePod(view.Pod); err != nil {
		return false, err
	}
	switch {
	case len(view.Seen.ContainerStatuses) > 0: // the events of their removals wake the worker
		w.agent.containerDeletor.deleteContainersInPod(view.Pod, view.Seen, true)
		w.requeue(w.agent.Clock.Now().Add(deletionRetry))
		return false, nil
	case len(a.RemoveSandboxes) > 0:
		return true, w.removeSandboxes(ctx, a)
	}
	err = w.agent.Runtime.Collect(func(uid types.UID) bool { return uid != w.uid })
	w.gone = err == nil
	return false, err
}

func (w *podWorker) removeSandboxes(ctx context.Context, a plan.PodActions) (err error) {
	for _, id := range a.RemoveSandboxes {
		err = errors.Join(err, w.agent.Runtime.RemovePodSandbox(ctx, id))
	}
	return err
}

// killContainers stops the containers and sandboxes of a plan, step by step. The runtime may report
// their ends only later.
func (w *podWorker) killContainers(ctx context.Context, view plan.View, a plan.PodActions) (err error) {
	began, ids := w.agent.Clock.Now(), slices.Clone(a.StopSandboxes)
	for _, k := range slices.Concat(a.Kill...) {
		ids = append(ids, k.ID.ID)
		if !view.Over {
			w.locked(func() { w.interrupted[k.Name] = k.ID.String() })
		}
	}
	if w.ended.HasAll(ids...) {
		w.ended.Delete(ids...) // the next sync stops these containers and sandboxes again
		return errLives
	}
	w.publish()
	w.agent.statusManager.SyncPod(w.uid) // stores w.interrupted, in case this agent is killed now
	for _, step := range a.Kill {
		var calls errgroup.Group
		for _, k := range step {
			calls.Go(func() error { return w.killContainer(ctx, view.Pod, k, began) })
		}
		if err = calls.Wait(); err != nil {
			return err
		}
	}
	for _, id := range a.StopSandboxes {
		err = errors.Join(err, w.agent.Runtime.StopPodSandbox(ctx, id))
	}
	if err == nil {
		w.ended.Insert(ids...)
	}
	return err
}

// killContainer runs a container's preStop hook and stops the container. began is the start of the
// grace period.
func (w *podWorker) killContainer(ctx context.Context, pod *v1.Pod, k plan.Kill, began time.Time) error {
	w.agent.Logger.V(1).Info("A container is ended", "pod", klog.KObj(pod), "container", k.Name, "why", k.Why)
	over := began.Add(plan.Grace(pod, k.Probe))
	c, grace := plan.Find(pod, k.Name), over.Sub(w.agent.Clock.Now())
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 {
		hookCtx, cancel := context.WithTimeout(ctx, grace)
		err := w.target(c, k.ID.ID).Hook(hookCtx, c.Lifecycle.PreStop, grace)
		cancel()
		if err != nil {
			w.agent.Logger.Error(err, "A preStop hook failed", "pod", klog.KObj(pod), "container", k.Name)
		}
	}
	return w.agent.Runtime.StopContainer(ctx, k.ID.ID, max(over.Sub(w.agent.Clock.Now()), leastGrace))
}

// target returns a handler.Target that runs the hooks of a container.
func (w *podWorker) target(c *v1.Container, id string) handler.Target {
	return handler.Target{Runtime: w.agent.Runtime, Container: c, ID: id,
		PodIP: w.agent.statusManager.GetPod(w.uid).Status.PodIP}
}

// setWaiting stores, for the status, why a container is waiting. The reasons are the kubelet's.
func (w *podWorker) setWaiting(c *v1.Container, reason, message string) {
	w.locked(func() { w.reasons[c.Name] = v1.ContainerStateWaiting{Reason: reason, Message: message} })
}

// startContainer starts a container. If the container must wait, it plans another sync of the pod.
func (w *podWorker) startContainer(ctx context.Context, view plan.View, c *v1.Container) (did bool, err error) {
	created := view.Active(c.Name)
	found := created != nil && created.State == pleg.ContainerStateCreated
	if found && created.Hash != view.Hash(c) {
		// An earlier agent may still be starting this container. In that case, the removal fails,
		// and the container will run.
		return true, w.agent.Runtime.RemoveContainer(ctx, created.ID.ID)
	}
	pod, key := view.Pod, fmt.Sprintf("%s/%x", c.Name, view.Hash(c))
	crashed := view.Crashed(c, w.ended)
	if w.crashes.IsInBackOffSince(key, crashed) {
		clear(w.ended) // from now on, instances that the agent has stopped also count as crashes
		backoff := w.crashes.Get(key)
		w.setWaiting(c, "CrashLoopBackOff", fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)",
			backoff, c.Name, pod.Name, pod.Namespace, pod.UID))
		w.requeue(crashed.Add(backoff))
		return false, nil
	}
	if reason, message, until := w.agent.Runtime.EnsureImage(ctx, c, w.pulls); reason != "" {
		w.setWaiting(c, reason, message)
		if until.IsZero() {
			return false, errors.New(message)
		}
		w.requeue(until)
		return false, nil
	}
	if !crashed.IsZero() {
		w.crashes.Next(key, crashed)
	}
	sandbox := view.Seen.SandboxStatuses[0]
	// A created container that never ran is reused, because its removal would lose its restart
	// count.
	if !found {
		created = &pleg.Status{RestartCount: view.RestartCount(c)}
		withIPs := *pod
		withIPs.Status = w.agent.statusManager.GetPod(w.uid).Status // contains the sandbox's addresses
		created.ID.ID, err = w.agent.Runtime.CreateContainer(ctx, &withIPs, c, sandbox.GetId(),
			sandbox.GetMetadata().GetAttempt(), uint32(created.RestartCount)) //nolint:gosec // small
		if err != nil {
			reason := "CreateContainerError"
			if errors.Is(err, runtime.ErrConfig) {
				reason = "CreateContainerConfigError"
			}
			w.setWaiting(c, reason, err.Error())
			return false, err
		}
	}
	if err = w.agent.Runtime.StartContainer(ctx, created.ID.ID); err != nil {
		w.setWaiting(c, "RunContainerError", err.Error())
		return false, err
	}
	w.locked(func() { delete(w.reasons, c.Name) })
	w.agent.Logger.V(1).Info("A container was started", "pod", klog.KObj(pod), "container", c.Name,
		"restarts", created.RestartCount)
	return true, w.postStart(ctx, pod, c, created.ID.ID)
}

// postStart runs the postStart hook of a started container. If the hook fails, it stops the
// container.
func (w *podWorker) postStart(ctx context.Context, pod *v1.Pod, c *v1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	// The hook may run for a long time, and it needs the pod's address. So the agent publishes the
	// new status before it runs the hook.
	_, _, err := w.agent.cache.LookupNewerThan(ctx, w.uid, w.agent.Clock.Now())
	if err == nil {
		w.publish()
		err = w.target(c, id).Hook(ctx, c.Lifecycle.PostStart, 0)
	}
	if err != nil {
		// The error contains output of the hook, which not every reader of the status may see.
		w.setWaiting(c, "PostStartHookError", "the agent's log has the error of the postStart hook")
		return errors.Join(fmt.Errorf("the postStart hook of container %s: %w", c.Name, err),
			w.agent.Runtime.StopContainer(ctx, id, plan.Grace(pod, nil)))
	}
	return nil
}
