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
func (w *worker) act(ctx context.Context, view plan.View) (did bool, err error) {
	if !view.Unwanted && slices.ContainsFunc(view.Seen.ContainerStatuses, view.Unsettled) {
		if !view.Now.Before(w.askAgain) {
			w.askAgain = view.Now.Add(unsettledPeriod)
			w.generator.RequestReinspect(w.uid)
		}
		w.again(w.askAgain)
		return false, nil
	}
	view.Listed = w.generator.Pod(w.uid)
	a := plan.Make(view)
	switch {
	case len(a.Kill)+len(a.StopSandboxes) > 0:
		return true, w.end(ctx, view, a)
	case a.CreateSandbox && w.sandboxes.IsInBackOffSinceUpdate("", time.Now()):
		// An event of the failed or unsuitable sandbox may have woken the worker. The event must
		// not cause another attempt at once.
		w.again(time.Now().Add(firstSandbox))
		return false, nil
	case a.CreateSandbox:
		if err = w.Runtime.PrepareVolumes(view.Pod); err != nil {
			return false, err // the pod waits without a sandbox, as in the kubelet
		}
		_, err = w.Runtime.RunPodSandbox(ctx, view.Pod, a.Attempt)
		w.sandboxes.Next("", time.Now())
		return true, err
	}
	for _, c := range a.Start {
		started, failed := w.start(ctx, view, c)
		err = errors.Join(err, failed)
		if started {
			return true, err
		}
	}
	if view.Unwanted {
		// Remove the status first. If the agent is killed now, the next agent must not use this
		// status for a new pod.
		w.note(func() { w.hidden = true })
		if err = w.status.remove(view.Pod); err != nil {
			return false, err
		}
	}
	if len(a.Remove)+len(a.RemoveSandboxes) > 0 {
		left := w.remove(ctx, view.Pod, a)
		if view.Unwanted {
			return true, left
		}
		if left == nil {
			return true, nil
		}
		w.Logger.V(1).Info("Something that is dead could not be removed", "pod", klog.KObj(view.Pod), "err", left)
	}
	if view.Unwanted {
		err = w.Runtime.Collect(func(uid types.UID) bool { return uid != w.uid })
		w.gone = err == nil
	}
	return false, err
}

// end stops the containers and sandboxes of a plan, step by step. The runtime may report their ends
// only later.
func (w *worker) end(ctx context.Context, view plan.View, a plan.Actions) (err error) {
	began, ids := time.Now(), slices.Clone(a.StopSandboxes)
	for _, k := range slices.Concat(a.Kill...) {
		ids = append(ids, k.ID.ID)
		if !view.Over {
			w.note(func() { w.interrupted[k.Name] = k.ID.String() })
		}
	}
	if w.ended.HasAll(ids...) {
		w.ended.Delete(ids...) // the next sync stops these containers and sandboxes again
		return errLives
	}
	w.publish() // stores w.interrupted for the next agent, in case this agent is killed now
	for _, step := range a.Kill {
		var calls errgroup.Group
		for _, k := range step {
			calls.Go(func() error { return w.kill(ctx, view.Pod, k, began) })
		}
		if err = calls.Wait(); err != nil {
			return err
		}
	}
	for _, id := range a.StopSandboxes {
		err = errors.Join(err, w.Runtime.StopPodSandbox(ctx, id))
	}
	if err == nil {
		w.ended.Insert(ids...)
	}
	return err
}

// kill runs a container's preStop hook and stops the container. began is the start of the grace
// period.
func (w *worker) kill(ctx context.Context, pod *v1.Pod, k plan.Kill, began time.Time) error {
	w.Logger.Info("A container is ended", "pod", klog.KObj(pod), "container", k.Name, "why", k.Why)
	over := began.Add(plan.Grace(pod, k.Probe))
	c, grace := plan.Find(pod, k.Name), time.Until(over)
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 {
		hookCtx, cancel := context.WithDeadline(ctx, over)
		err := w.target(c, k.ID.ID).Hook(hookCtx, c.Lifecycle.PreStop, grace)
		cancel()
		if err != nil {
			w.Logger.Error(err, "A preStop hook failed", "pod", klog.KObj(pod), "container", k.Name)
		}
	}
	return w.Runtime.StopContainer(ctx, k.ID.ID, max(time.Until(over), leastGrace))
}

// target returns a handler.Target that runs the hooks of a container.
func (w *worker) target(c *v1.Container, id string) handler.Target {
	return handler.Target{Runtime: w.Runtime, Container: c, ID: id, PodIP: w.status.get(w.uid).Status.PodIP}
}

// remove removes a pod's dead containers and sandboxes, with their logs.
func (w *worker) remove(ctx context.Context, pod *v1.Pod, a plan.Actions) (err error) {
	for _, s := range a.Remove {
		err = errors.Join(err, w.Runtime.RemoveContainer(ctx, s.ID.ID),
			w.Runtime.RemoveLogs(pod, s.Name, s.RestartCount))
	}
	for _, id := range a.RemoveSandboxes {
		err = errors.Join(err, w.Runtime.RemovePodSandbox(ctx, id))
	}
	return err
}

// waits stores, for the status, why a container is waiting. The reasons are the kubelet's.
func (w *worker) waits(c *v1.Container, reason, message string) {
	w.note(func() { w.reasons[c.Name] = v1.ContainerStateWaiting{Reason: reason, Message: message} })
}

// start starts a container. If the container must wait, start plans another sync of the pod.
func (w *worker) start(ctx context.Context, view plan.View, c *v1.Container) (did bool, err error) {
	created := view.Active(c.Name)
	found := created != nil && created.State == pleg.ContainerStateCreated
	if found && created.Hash != view.Hash(c) {
		// An earlier agent may still be starting this container. In that case, the removal fails,
		// and the container will run.
		return true, w.Runtime.RemoveContainer(ctx, created.ID.ID)
	}
	pod, key := view.Pod, fmt.Sprintf("%s/%x", c.Name, view.Hash(c))
	crashed := view.Crashed(c, w.ended)
	if w.crashes.IsInBackOffSince(key, crashed) {
		clear(w.ended) // from now on, instances that the agent has stopped also count as crashes
		backoff := w.crashes.Get(key)
		w.waits(c, "CrashLoopBackOff", fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)",
			backoff, c.Name, pod.Name, pod.Namespace, pod.UID))
		w.again(crashed.Add(backoff))
		return false, nil
	}
	if reason, message, until := w.Runtime.EnsureImage(ctx, c, w.pulls); reason != "" {
		w.waits(c, reason, message)
		if until.IsZero() {
			return false, errors.New(message)
		}
		w.again(until)
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
		withIPs.Status = w.status.get(w.uid).Status // contains the sandbox's addresses
		created.ID.ID, err = w.Runtime.CreateContainer(ctx, &withIPs, c, sandbox.GetId(), sandbox.GetMetadata().GetAttempt(),
			uint32(created.RestartCount)) //nolint:gosec // small
		if err != nil {
			reason := "CreateContainerError"
			if errors.Is(err, runtime.ErrConfig) {
				reason = "CreateContainerConfigError"
			}
			w.waits(c, reason, err.Error())
			return false, err
		}
	}
	if err = w.Runtime.StartContainer(ctx, created.ID.ID); err != nil {
		w.waits(c, "RunContainerError", err.Error())
		return false, err
	}
	w.note(func() { delete(w.reasons, c.Name) })
	w.Logger.V(1).Info("A container was started", "pod", klog.KObj(pod), "container", c.Name,
		"restarts", created.RestartCount)
	return true, w.postStart(ctx, pod, c, created.ID.ID)
}

// postStart runs the postStart hook of a started container. If the hook fails, it stops the
// container.
func (w *worker) postStart(ctx context.Context, pod *v1.Pod, c *v1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	// The hook may run for a long time, and it needs the pod's address. So the agent publishes the
	// new status before it runs the hook.
	_, _, err := w.cache.LookupNewerThan(ctx, w.uid, w.Clock.Now())
	if err == nil {
		w.publish()
		err = w.target(c, id).Hook(ctx, c.Lifecycle.PostStart, 0)
	}
	if err != nil {
		// The error contains output of the hook, which not every reader of the status may see.
		w.waits(c, "PostStartHookError", "the agent's log has the error of the postStart hook")
		return errors.Join(fmt.Errorf("the postStart hook of container %s: %w", c.Name, err),
			w.Runtime.StopContainer(ctx, id, plan.Grace(pod, nil)))
	}
	return nil
}
