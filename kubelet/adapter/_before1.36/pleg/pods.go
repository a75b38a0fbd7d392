package pleg

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

// Before 1.36, the adapter does not implement pleg.PodGetter, because the kubelet's runtime cannot
// list one pod.

func inspect(ctx context.Context, r kubecontainer.Runtime, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	return r.GetPodStatus(ctx, pod.ID, pod.Name, pod.Namespace)
}

// GetPodStatus implements kubecontainer.Runtime.
func (r *nodeRuntime) GetPodStatus(ctx context.Context, uid types.UID, name, namespace string,
) (*kubecontainer.PodStatus, error) {
	status, err := r.Runtime.GetPodStatus(ctx, uid, name, namespace)
	if err == nil {
		r.ends.correct(status)
	}
	return status, err
}

func convertContainer(c *kubecontainer.Container) *pleg.Container {
	return &pleg.Container{
		ID: pleg.ContainerID(c.ID), Name: c.Name, State: pleg.State(c.State), Hash: c.Hash, Source: c,
	}
}
