package pleg

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// GetPod implements pleg.PodGetter.
func (r podRuntime) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	pod, err := r.Runtime.GetPod(ctx, uid)
	if errors.Is(err, kubecontainer.ErrPodNotFound) {
		return nil, pleg.ErrPodNotFound
	}
	if err != nil {
		return nil, err
	}
	return convertPod(pod), nil
}

func inspect(ctx context.Context, r kubecontainer.Runtime, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	return r.GetPodStatus(ctx, pod)
}

// GetPodStatus implements kubecontainer.Runtime.
func (r *nodeRuntime) GetPodStatus(ctx context.Context, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	status, err := r.Runtime.GetPodStatus(ctx, pod)
	if err == nil {
		r.ends.correct(status)
	}
	return status, err
}

func convertContainer(c *kubecontainer.Container) *pleg.Container {
	return &pleg.Container{
		ID: pleg.ContainerID(c.ID), Name: c.Name, State: pleg.State(c.State), Hash: c.Hash,
		PodSandboxID: c.PodSandboxID, CreatedAt: c.CreatedAt, Source: c,
	}
}
