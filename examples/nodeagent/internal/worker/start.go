package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// waits notes why a container does not run. The reasons are the kubelet's.
func (w *worker) waits(c *v1.Container, reason, message string) {
	w.reasons[c.Name] = v1.ContainerStateWaiting{Reason: reason, Message: message}
}

// prepare sees to what a container needs before it can be started: that its back-off is over, and that its image is
// there. It returns until when the container must wait, zero if it need not.
func (w *worker) prepare(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus, c *v1.Container) (time.Time, error) {
	// One that still runs in what was seen has been killed since.
	i := slices.IndexFunc(seen.ContainerStatuses, func(s *pleg.Status) bool {
		return s.Name == c.Name && s.State != pleg.ContainerStateRunning
	})
	if i >= 0 {
		last := seen.ContainerStatuses[i]
		key, failed := fmt.Sprintf("%s/%x", c.Name, runtime.ContainerHash(pod, c)), last.FinishedAt
		if last.State != pleg.ContainerStateExited {
			failed = last.CreatedAt // its start failed, or nobody knows what became of it
		}
		if w.crashes.IsInBackOffSince(key, failed) {
			backoff := w.crashes.Get(key)
			w.waits(c, "CrashLoopBackOff", fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)",
				backoff, c.Name, pod.Name, pod.Namespace, pod.UID))
			return failed.Add(backoff), nil
		}
		w.crashes.Next(key, failed)
	}
	return w.image(ctx, c)
}

func (w *worker) image(ctx context.Context, c *v1.Container) (time.Time, error) {
	present, err := w.Runtime.ImagePresent(ctx, c.Image)
	switch {
	case err != nil:
		w.waits(c, "ImageInspectError", err.Error())
		return time.Time{}, err
	case present && c.ImagePullPolicy != v1.PullAlways:
		return time.Time{}, nil
	case c.ImagePullPolicy == v1.PullNever:
		w.waits(c, "ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
		return time.Time{}, errors.New(w.reasons[c.Name].Message)
	}
	if tried := w.tried[c.Image]; w.pulls.IsInBackOffSince(c.Image, tried) {
		w.waits(c, "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
		return tried.Add(w.pulls.Get(c.Image)), nil
	}
	if err := w.Runtime.PullImage(ctx, c.Image); err != nil {
		w.tried[c.Image] = time.Now()
		w.pulls.Next(c.Image, time.Now())
		w.waits(c, "ErrImagePull", err.Error())
		return time.Time{}, err
	}
	return time.Time{}, nil
}

func (w *worker) start(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus, c *v1.Container,
	sandboxID string, attempt uint32) error {
	restarts, id := w.restarts(c, seen), ""
	if last := seen.FindContainerStatusByName(c.Name); last != nil && last.State == pleg.ContainerStateCreated &&
		last.Hash == runtime.ContainerHash(pod, c) && slices.Contains(seen.ActiveContainerStatuses, last) &&
		sandboxID == seen.SandboxStatuses[0].GetId() {
		// It never ran: an agent before this one was interrupted, or its start failed. It is used, not
		// replaced, because its restart count would go with it.
		restarts, id = last.RestartCount, last.ID.ID
	}
	id, err := w.createAndStart(ctx, pod, c, id, sandboxID, attempt, uint32(restarts)) //nolint:gosec // small
	if err != nil {
		return err
	}
	delete(w.reasons, c.Name)
	w.Logger.V(1).Info("A container was started", "pod", klog.KObj(pod), "container", c.Name, "restarts", restarts)
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	// A new sandbox has another address than the status of before.
	now, err := w.newer(ctx, time.Now())
	if err == nil {
		w.publish(pod, now)
		err = w.hook(ctx, c, c.Lifecycle.PostStart, id, 0)
	}
	if err != nil {
		w.waits(c, "PostStartHookError", err.Error())
		return errors.Join(fmt.Errorf("the postStart hook of container %s: %w", c.Name, err),
			w.Runtime.StopContainer(ctx, id, graceOf(pod, c, "")))
	}
	return nil
}

// restarts returns the restart count of the next instance of a container.
func (w *worker) restarts(c *v1.Container, seen *pleg.PodStatus) int {
	if last := seen.FindContainerStatusByName(c.Name); last != nil {
		return last.RestartCount + 1
	}
	status := w.Status.Get(w.uid) // the runtime may have lost it
	before := ptr.Deref(plan.FindStatus(&status, c.Name), v1.ContainerStatus{})
	if before.ContainerID != "" {
		before.RestartCount++
	}
	return int(before.RestartCount)
}

// createAndStart starts a container, and creates it before, if it has no ID.
func (w *worker) createAndStart(ctx context.Context, pod *v1.Pod, c *v1.Container, id, sandboxID string,
	attempt, restarts uint32) (_ string, err error) {
	if id == "" {
		if id, err = w.Runtime.CreateContainer(ctx, pod, c, sandboxID, attempt, restarts); err != nil {
			reason := "CreateContainerError"
			if errors.Is(err, runtime.ErrConfig) {
				reason = "CreateContainerConfigError"
			}
			w.waits(c, reason, err.Error())
			return "", err
		}
	}
	if err := w.Runtime.StartContainer(ctx, id); err != nil {
		w.waits(c, "RunContainerError", err.Error())
		return "", err
	}
	return id, nil
}
