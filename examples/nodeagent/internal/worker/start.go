package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// The reasons why a container that should run does not, as the kubelet has them.
const (
	crashLoopBackOff     = "CrashLoopBackOff"
	imagePullBackOff     = "ImagePullBackOff"
	errImagePull         = "ErrImagePull"
	errImageNeverPull    = "ErrImageNeverPull"
	createContainerError = "CreateContainerError"
	runContainerError    = "RunContainerError"
	postStartHookError   = "PostStartHookError"
)

// waits notes why a container does not run.
func (w *worker) waits(c *v1.Container, reason, message string) {
	w.reasons[c.Name] = v1.ContainerStateWaiting{Reason: reason, Message: message}
}

// prepare sees to what a container needs before it can be started: that its back-off is over, and that its image is
// there. It returns until when the container must wait, zero if it need not.
func (w *worker) prepare(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus, c *v1.Container) (time.Time, error) {
	key := fmt.Sprintf("%s/%s/%x", w.uid, c.Name, runtime.ContainerHash(c))
	for _, s := range seen.ContainerStatuses { // newest first
		failed := s.FinishedAt
		switch {
		case s.Name != c.Name:
			continue
		case s.State == pleg.ContainerStateCreated:
			failed = s.CreatedAt // its start failed
		case s.State != pleg.ContainerStateExited:
			continue
		}
		if wait, over := w.crashes.Wait(key, failed); wait > 0 {
			w.waits(c, crashLoopBackOff, fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)",
				wait, c.Name, pod.Name, pod.Namespace, pod.UID))
			return over, nil
		}
		w.crashes.Next(key, failed)
		break
	}
	return w.image(ctx, c)
}

// image sees to a container's image.
func (w *worker) image(ctx context.Context, c *v1.Container) (time.Time, error) {
	present, err := w.Runtime.ImagePresent(ctx, c.Image)
	switch {
	case err != nil:
		w.waits(c, "ImageInspectError", err.Error())
		return time.Time{}, err
	case present && c.ImagePullPolicy != v1.PullAlways:
		return time.Time{}, nil
	case c.ImagePullPolicy == v1.PullNever:
		w.waits(c, errImageNeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
		return time.Time{}, errors.New(w.reasons[c.Name].Message)
	}
	key := string(w.uid) + "/" + c.Image
	if wait, over := w.pulls.Wait(key, w.failed[c.Image]); wait > 0 {
		w.waits(c, imagePullBackOff, fmt.Sprintf("Back-off pulling image %q", c.Image))
		return over, nil
	}
	if err := w.Runtime.PullImage(ctx, c.Image); err != nil {
		w.pulls.Next(key, time.Now())
		w.failed[c.Image] = time.Now()
		w.waits(c, errImagePull, err.Error())
		return time.Time{}, err
	}
	delete(w.failed, c.Image)
	return time.Time{}, nil
}

// start creates a container and starts it.
func (w *worker) start(ctx context.Context, pod *v1.Pod, seen *pleg.PodStatus, c *v1.Container,
	sandboxID string, attempt uint32) error {
	restarts, created := 0, ""
	if last := seen.FindContainerStatusByName(c.Name); last != nil {
		restarts = last.RestartCount + 1
		if last.State == pleg.ContainerStateCreated && last.Hash == runtime.ContainerHash(c) &&
			slices.Contains(seen.ActiveContainerStatuses, last) && sandboxID == seen.SandboxStatuses[0].GetId() {
			// It never ran: an agent before this one was interrupted, or its start failed. It is used, not
			// replaced, because its restart count would go with it.
			restarts, created = last.RestartCount, last.ID.ID
		}
	} else if before, ok := w.Status.Get(w.uid); ok {
		for _, s := range append(before.ContainerStatuses, before.InitContainerStatuses...) {
			if s.Name == c.Name { // the runtime may have lost it
				restarts = int(s.RestartCount)
				if s.ContainerID != "" {
					restarts++
				}
			}
		}
	}
	// Two changes in the runtime are one to everybody else.
	resume := w.Suspend(w.uid)
	id, err := w.createAndStart(ctx, pod, c, created, sandboxID, attempt, uint32(restarts)) //nolint:gosec // small
	resume()
	if err != nil {
		return err
	}
	w.Logger.V(1).Info("A container was started", "pod", podName(pod), "container", c.Name, "restarts", restarts)
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	// A new sandbox has another address than the status of before.
	now, err := w.Cache.GetNewerThanContext(ctx, w.uid, time.Now())
	if err == nil {
		w.publish(pod, now)
		err = w.hook(ctx, c, c.Lifecycle.PostStart, pleg.ContainerID{ID: id})
	}
	if err != nil {
		w.waits(c, postStartHookError, err.Error())
		return errors.Join(fmt.Errorf("the postStart hook of container %s: %w", c.Name, err),
			w.Runtime.StopContainer(ctx, id, graceOf(pod, c, "")))
	}
	return nil
}

// createAndStart starts a container, and creates it before, if it is not.
func (w *worker) createAndStart(ctx context.Context, pod *v1.Pod, c *v1.Container, id, sandboxID string,
	attempt, restarts uint32) (string, error) {
	var err error
	if id == "" {
		if id, err = w.Runtime.CreateContainer(ctx, pod, c, sandboxID, attempt, restarts); err != nil {
			w.waits(c, createContainerError, err.Error())
			return "", err
		}
	}
	if err := w.Runtime.StartContainer(ctx, id); err != nil {
		w.waits(c, runContainerError, err.Error())
		return "", err
	}
	delete(w.reasons, c.Name)
	return id, nil
}
