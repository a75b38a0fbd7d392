package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// leastGrace is what a container gets to end in, even if its preStop hook has used up the grace period.
const leastGrace = 2 * time.Second

// act does the first thing of a plan that can be done, and reports whether it did anything. Of what must wait, it
// returns until when.
func (w *worker) act(ctx context.Context, view plan.View, a plan.Actions) (did bool, again time.Time, err error) {
	if a.KillPod {
		if did, err = w.killPod(ctx, view.Pod, view.Seen); did || err != nil {
			return did, again, err
		}
	}
	switch {
	case len(a.Kill) > 0:
		return true, again, w.kill(ctx, view.Pod, a.Kill)
	case a.CreateSandbox:
		if w.sandboxes.IsInBackOffSince("", w.tried[""]) {
			// The events of one that failed, or is not as it should be, are no reason to try again.
			return false, w.tried[""].Add(w.sandboxes.Get("")), nil
		}
		defer w.did()
		_, err = w.Runtime.RunPodSandbox(ctx, view.Pod, a.Attempt)
		w.tried[""] = time.Now()
		w.sandboxes.Next("", time.Now())
		return err == nil, again, err
	}
	var errs []error
	for _, c := range a.Start {
		started, wait, err := w.start(ctx, view, c)
		again, errs = earlier(again, wait), append(errs, err)
		if started {
			return true, again, errors.Join(errs...)
		}
	}
	w.tidy(ctx, view)
	return false, again, errors.Join(errs...)
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
			seconds := *pod.Spec.TerminationGracePeriodSeconds
			if p := plan.Probe(k.Container, k.Probe); p != nil && p.TerminationGracePeriodSeconds != nil {
				seconds = *p.TerminationGracePeriodSeconds
			}
			return w.killContainer(ctx, pod, k.Status, time.Duration(seconds)*time.Second)
		})
	})
}

// killPod ends what runs in a pod, if anything does: the containers at once, then the sidecars one after another in
// reverse order, then the sandboxes. All share one grace period.
func (w *worker) killPod(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus) (did bool, err error) {
	var ids []string
	var containers []*pleg.Status
	sidecars := map[string][]*pleg.Status{}
	for _, s := range seen.ContainerStatuses {
		if !plan.Lives(s) {
			continue
		}
		ids = append(ids, s.ID.ID)
		if c := plan.Find(pod, s.Name); c != nil && plan.IsSidecar(c) {
			sidecars[s.Name] = append(sidecars[s.Name], s)
		} else {
			containers = append(containers, s)
		}
	}
	sandboxes := slices.DeleteFunc(slices.Clone(seen.SandboxStatuses), func(s *runtimeapi.PodSandboxStatus) bool {
		return s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY
	})
	for _, s := range sandboxes {
		ids = append(ids, s.GetId())
	}
	if len(ids) == 0 {
		return false, nil
	}
	over := time.Now().Add(time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second)
	kill := func(s *pleg.Status) error { return w.killContainer(ctx, pod, s, time.Until(over)) }
	return true, w.end(ids, func() error {
		if err := each(containers, kill); err != nil {
			return err
		}
		for _, c := range slices.Backward(pod.Spec.InitContainers) {
			if err := each(sidecars[c.Name], kill); err != nil {
				return err
			}
		}
		return each(sandboxes, func(s *runtimeapi.PodSandboxStatus) error {
			return w.Runtime.StopPodSandbox(ctx, s.GetId())
		})
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

// tidy removes what a pod leaves behind while it goes on: of each container the newest dead instance is kept, for its
// exit code and its restart count; older ones go, with their logs, and so do containers that were replaced before they
// were started, and dead sandboxes without a container.
func (w *worker) tidy(ctx context.Context, view plan.View) {
	maps.DeleteFunc(w.ended, func(id string, _ bool) bool {
		return !slices.ContainsFunc(view.Seen.ContainerStatuses,
			func(s *pleg.Status) bool { return s.ID.ID == id })
	})
	var err error
	kept, replaced := map[string]bool{}, map[string]bool{}
	for _, s := range view.Seen.ContainerStatuses { // newest first
		exited := s.State == pleg.ContainerStateExited
		if exited && kept[s.Name] || s.State == pleg.ContainerStateCreated && replaced[s.Name] {
			err = errors.Join(err, w.Runtime.RemoveContainer(ctx, s.ID.ID),
				w.Runtime.RemoveLogs(view.Pod, s.Name, s.RestartCount))
			w.did()
		}
		kept[s.Name] = kept[s.Name] || exited
		replaced[s.Name] = true
	}
	listed := w.generator.Pods().FindPodByID(w.uid)
	for i, s := range view.Seen.SandboxStatuses {
		of := func(c *pleg.Container) bool { return c.PodSandboxID == s.GetId() }
		if i > 0 && s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY && listed != nil &&
			!slices.ContainsFunc(listed.Containers, of) {
			err = errors.Join(err, w.Runtime.RemovePodSandbox(ctx, s.GetId()))
			w.did()
		}
	}
	if err != nil {
		w.Logger.V(1).Info("Something that is dead could not be removed", "pod", klog.KObj(view.Pod), "err", err)
	}
}

// each calls f for every item at once, and returns when all calls have.
func each[T any](items []T, f func(T) error) error {
	var calls errgroup.Group
	for _, item := range items {
		calls.Go(func() error { return f(item) })
	}
	return calls.Wait()
}
