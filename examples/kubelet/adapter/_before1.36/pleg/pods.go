package pleg

import (
	"context"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// There is no pleg.PodGetter: the runtime lists all pods or none.

func inspect(ctx context.Context, r kubecontainer.Runtime, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	return r.GetPodStatus(ctx, pod.ID, pod.Name, pod.Namespace)
}
