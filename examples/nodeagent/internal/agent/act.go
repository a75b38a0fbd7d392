package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// leastGrace is what a container gets to end in, even if its preStop hook has used up the grace period.
const leastGrace = 2 * time.Second

// act does the first thing of a plan that can be done, and reports whether it did anything.
func (w *worker) act(ctx context.Context, view plan.View, a plan.Actions) (did bool, err error) {
	if a.KillPod {
		if did, err = w.killPod(ctx, view.Pod, view.Seen); did || err != nil {
			return did, err
		}
	}
	switch {
	case len(a.Kill) > 0:
		return true, w.kill(ctx, view.Pod, a.Kill)
	case a.CreateSandbox && w.sandboxes.IsInBackOffSince("", w.made):
		// The events of one that failed, or is not as it should be, are no reason to try again.
		w.again(w.made.Add(w.sandboxes.Get("")))
		return false, nil
	case a.CreateSandbox:
		defer w.did()
		_, err = w.Runtime.RunPodSandbox(ctx, view.Pod, a.Attempt)
		w.made = time.Now()
		w.sandboxes.Next("", w.made)
		return true, err
	}
	for _, c := range a.Start {
		started, failed := w.start(ctx, view, c)
		err = errors.Join(err, failed)
		if started {
			return true, err
		}
	}
	w.tidy(ctx, view)
	return false, err
}

// kill ends containers, all at once.
func (w *worker) kill(ctx context.Context, pod *v1.Pod, kills []plan.Kill) error {
	var ids []string
	for _, k := range kills {
		ids = append(ids, k.Status.ID.ID)
		if k.Probe == "" { // it has not failed
			w.crashes.DeleteEntry(crashKey(k.Container.Name, k.Status.Hash))
		}
		w.Logger.Info("A container is ended", "pod", klog.KObj(pod), "container", k.Container.Name, "why", k.Why)
	}
	return w.end(ids, func() error {
		return each(kills, func(k plan.Kill) error {
			return w.killContainer(ctx, pod, k.Status, plan.Grace(pod, k.Container, k.Probe))
		})
	})
}

// killPod ends what runs in a pod, if anything does: the containers, then the sidecars, then the sandboxes. All share
// one grace period.
func (w *worker) killPod(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) (did bool, err error) {
	steps, sandboxes := plan.KillOrder(pod, seen), plan.Sandboxes(seen)
	ids := slices.Clone(sandboxes)
	for _, s := range slices.Concat(steps...) {
		ids = append(ids, s.ID.ID)
	}
	if len(ids) == 0 {
		return false, nil
	}
	over := time.Now().Add(plan.Grace(pod, nil, ""))
	return true, w.end(ids, func() error {
		for _, step := range steps {
			err := each(step, func(s *pleg.Status) error { return w.killContainer(ctx, pod, s, time.Until(over)) })
			if err != nil {
				return err
			}
		}
		return each(sandboxes, func(id string) error { return w.Runtime.StopPodSandbox(ctx, id) })
	})
}

// end ends what has these IDs. What has been ended before needs a while until it is seen to have ended.
func (w *worker) end(ids []string, end func() error) error {
	defer w.did()
	if !slices.ContainsFunc(ids, func(id string) bool { return !w.ended[id] }) {
		for _, id := range ids {
			w.ended[id] = false // it is ended again the next time
		}
		return errLives
	}
	err := end()
	for _, id := range ids {
		w.ended[id] = err == nil
	}
	return err
}

// killContainer runs a container's preStop hook and ends it within the grace period.
func (w *worker) killContainer(ctx context.Context, pod *v1.Pod, s *pleg.Status, grace time.Duration) error {
	over := time.Now().Add(grace)
	c := plan.Find(pod, s.Name)
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 {
		hookCtx, cancel := context.WithDeadline(ctx, over)
		err := handler.Hook(hookCtx, w.Runtime, c, c.Lifecycle.PreStop, s.ID.ID, w.status.get(w.uid).PodIP, grace)
		cancel()
		if err != nil {
			w.Logger.Error(err, "A preStop hook failed", "pod", klog.KObj(pod), "container", s.Name)
		}
	}
	return w.Runtime.StopContainer(ctx, s.ID.ID, max(time.Until(over), leastGrace))
}

// tidy removes what a pod leaves behind while it goes on, with the logs.
func (w *worker) tidy(ctx context.Context, view plan.View) {
	maps.DeleteFunc(w.ended, func(id string, _ bool) bool {
		return !slices.ContainsFunc(view.Seen.ContainerStatuses, func(s *pleg.Status) bool { return s.ID.ID == id })
	})
	var err error
	containers, sandboxes := plan.Leftovers(w.generator.Pods().FindPodByID(w.uid), view.Seen)
	for _, s := range containers {
		err = errors.Join(err, w.Runtime.RemoveContainer(ctx, s.ID.ID),
			w.Runtime.RemoveLogs(view.Pod, s.Name, s.RestartCount))
	}
	for _, id := range sandboxes {
		err = errors.Join(err, w.Runtime.RemovePodSandbox(ctx, id))
	}
	if len(containers)+len(sandboxes) > 0 {
		w.did()
	}
	if err != nil {
		w.Logger.V(1).Info("Something that is dead could not be removed", "pod", klog.KObj(view.Pod), "err", err)
	}
}

// waits notes why a container does not run. The reasons are the kubelet's.
func (w *worker) waits(c *v1.Container, reason, message string) {
	w.reasons[c.Name] = v1.ContainerStateWaiting{Reason: reason, Message: message}
}

// start starts a container, unless it must wait: then the pod is synced again.
func (w *worker) start(ctx context.Context, view plan.View, c *v1.Container) (did bool, err error) {
	created := view.Active(c.Name)
	found := created != nil && created.State == pleg.ContainerStateCreated
	if found && created.Hash != view.Hash(c) {
		// Its start by an earlier agent may be under way still. Then it cannot be removed, and will be seen to run.
		defer w.did()
		return true, w.Runtime.RemoveContainer(ctx, created.ID.ID)
	}
	pod, key := view.Pod, crashKey(c.Name, view.Hash(c))
	crashed := view.Crashed(c, w.ended)
	if w.crashes.IsInBackOffSince(key, crashed) {
		clear(w.ended) // what waits counts too
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
	defer w.did()
	sandbox, before := view.Seen.SandboxStatuses[0], w.status.get(w.uid)
	// One that was created and never ran is used, not replaced: its restart count would go with it. An agent before this
	// one was interrupted, or its start failed.
	if !found {
		created = &pleg.Status{RestartCount: view.RestartCount(c, &before)}
		created.ID.ID, err = w.Runtime.CreateContainer(ctx, pod, c, sandbox.GetId(), sandbox.GetMetadata().GetAttempt(),
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
		// An earlier start of one that was found may be under way still, and this one fails for that.
		if !found && !runtime.Lost(err) {
			w.refused[c.Name] = created.ID.ID
		}
		return false, err
	}
	delete(w.reasons, c.Name)
	w.Logger.V(1).Info("A container was started", "pod", klog.KObj(pod), "container", c.Name,
		"restarts", created.RestartCount)
	return true, w.postStart(ctx, pod, c, created.ID.ID)
}

// crashKey is the key of the back-off of a container, by its specification.
func crashKey(name string, hash uint64) string { return fmt.Sprintf("%s/%x", name, hash) }

// postStart runs the hook of a container that has started, and ends the container if it fails.
func (w *worker) postStart(ctx context.Context, pod *v1.Pod, c *v1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	w.did()
	_, err := w.look(ctx, pod) // the hook may take long, and needs the pod's address
	if err == nil {
		w.publish(pod)
		err = handler.Hook(ctx, w.Runtime, c, c.Lifecycle.PostStart, id, w.status.get(w.uid).PodIP, 0)
	}
	if err != nil {
		w.waits(c, "PostStartHookError", err.Error())
		return errors.Join(fmt.Errorf("the postStart hook of container %s: %w", c.Name, err),
			w.Runtime.StopContainer(ctx, id, plan.Grace(pod, nil, "")))
	}
	return nil
}

// each calls f for every item at once, and returns when all calls have.
func each[T any](items []T, f func(T) error) error {
	var calls errgroup.Group
	for _, item := range items {
		calls.Go(func() error { return f(item) })
	}
	return calls.Wait()
}
