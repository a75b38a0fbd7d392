package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/handler"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// waits notes why a container does not run. The reasons are the kubelet's.
func (w *worker) waits(c *v1.Container, reason, message string) {
	w.reasons[c.Name] = v1.ContainerStateWaiting{Reason: reason, Message: message}
}

// start starts a container, unless it must wait: then it returns until when.
func (w *worker) start(ctx context.Context, view plan.View, c *v1.Container) (did bool, wait time.Time, err error) {
	pod, key := view.Pod, crashKey(c.Name, view.Hash(c))
	crashed := w.crashed(view, c)
	if w.crashes.IsInBackOffSince(key, crashed) {
		clear(w.ended) // what waits counts too
		backoff := w.crashes.Get(key)
		w.waits(c, "CrashLoopBackOff", fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)",
			backoff, c.Name, pod.Name, pod.Namespace, pod.UID))
		return false, crashed.Add(backoff), nil
	}
	if wait, err = w.image(ctx, c); err != nil || !wait.IsZero() {
		return false, wait, err
	}
	if !crashed.IsZero() {
		w.crashes.Next(key, crashed)
	}
	defer w.did()
	sandbox, restarts := view.Seen.SandboxStatuses[0], w.restarts(view, c)
	// One that was created and never ran is used, not replaced: its restart count would go with it. An agent before this
	// one was interrupted, or its start failed.
	created := view.Active(c.Name)
	if created == nil || created.State != pleg.ContainerStateCreated || created.Hash != view.Hash(c) {
		created = &pleg.Status{RestartCount: restarts}
		created.ID.ID, err = w.Runtime.CreateContainer(ctx, pod, c, sandbox.GetId(), sandbox.GetMetadata().GetAttempt(),
			uint32(restarts)) //nolint:gosec // small
		if err != nil {
			reason := "CreateContainerError"
			if errors.Is(err, runtime.ErrConfig) {
				reason = "CreateContainerConfigError"
			}
			w.waits(c, reason, err.Error())
			return false, wait, err
		}
	}
	if err = w.Runtime.StartContainer(ctx, created.ID.ID); err != nil {
		w.waits(c, "RunContainerError", err.Error())
		if !slices.Contains([]codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable}, grpcstatus.Code(err)) {
			w.refused[c.Name] = created.ID.ID
		}
		return false, wait, err
	}
	delete(w.reasons, c.Name)
	w.Logger.V(1).Info("A container was started", "pod", klog.KObj(pod), "container", c.Name,
		"restarts", created.RestartCount)
	return true, wait, w.postStart(ctx, pod, c, created.ID.ID)
}

// crashKey is the key of the back-off of a container, by its specification.
func crashKey(name string, hash uint64) string { return fmt.Sprintf("%s/%x", name, hash) }

// crashed returns when a container failed last, zero if it has not. As in the kubelet, an instance that the worker has
// ended does not count for the back-off of its successor, only those before it.
func (w *worker) crashed(view plan.View, c *v1.Container) time.Time {
	newest := view.Seen.FindContainerStatusByName(c.Name)
	for _, s := range view.Seen.ContainerStatuses { // newest first
		switch {
		case s.Name != c.Name || s.Hash != view.Hash(c) || s == newest && w.ended[s.ID.ID]:
		case s.State == pleg.ContainerStateExited:
			return s.FinishedAt
		default:
			return s.CreatedAt // its start failed, or nobody knows what became of it
		}
	}
	return time.Time{}
}

// image sees to it that a container's image is there. It returns until when to wait before it is pulled.
func (w *worker) image(ctx context.Context, c *v1.Container) (wait time.Time, err error) {
	if _, err := reference.ParseNormalizedNamed(c.Image); err != nil {
		w.waits(c, "InvalidImageName", fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v",
			c.Image, c.Image, err))
		return wait, fmt.Errorf("the image of container %s: %q: %w", c.Name, c.Image, err)
	}
	present, err := w.Runtime.ImagePresent(ctx, c.Image)
	switch {
	case err != nil:
		w.waits(c, "ImageInspectError", err.Error())
		return wait, err
	case present && c.ImagePullPolicy != v1.PullAlways:
		return wait, nil
	case c.ImagePullPolicy == v1.PullNever:
		w.waits(c, "ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
		return wait, errors.New(w.reasons[c.Name].Message)
	}
	if tried := w.tried[c.Image]; w.pulls.IsInBackOffSince(c.Image, tried) {
		w.waits(c, "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
		return tried.Add(w.pulls.Get(c.Image)), nil
	}
	if err := w.Runtime.PullImage(ctx, c.Image); err != nil {
		w.tried[c.Image] = time.Now()
		w.pulls.Next(c.Image, time.Now())
		w.waits(c, "ErrImagePull", err.Error())
		return wait, err
	}
	return wait, nil
}

// restarts returns the restart count of the next instance of a container.
func (w *worker) restarts(view plan.View, c *v1.Container) int {
	if last := view.Seen.FindContainerStatusByName(c.Name); last != nil {
		return last.RestartCount + 1
	}
	status := w.status.get(w.uid) // the runtime may have lost it
	before := ptr.Deref(plan.FindStatus(&status, c.Name), v1.ContainerStatus{})
	return int(before.RestartCount)
}

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
		grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
		return errors.Join(fmt.Errorf("the postStart hook of container %s: %w", c.Name, err),
			w.Runtime.StopContainer(ctx, id, grace))
	}
	return nil
}
