package plegtest

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// SetStatus sets the status that GetPodStatus returns for a pod, whatever the pod's state is. With
// nil, GetPodStatus again builds the status from the pod. The pod need not exist. The test must not
// modify the status afterwards. GetPodStatus returns a shallow copy. To simulate an outdated
// status, set a status that GetPodStatus returned earlier.
func (r *Runtime) SetStatus(uid types.UID, status *pleg.PodStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if status == nil {
		delete(r.statuses, uid)
		return
	}
	r.statuses[uid] = status
}

// SetIPs sets the addresses of the pod's newest sandbox, with the primary address first. As in a
// real runtime, a status contains these addresses only while the sandbox is ready and no newer
// sandbox exists. SetIPs panics if the pod does not exist or contains no sandbox.
func (r *Runtime) SetIPs(uid types.UID, ips ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := r.mustFindPodLocked(uid)
	if len(pod.Sandboxes) == 0 || pod.Sandboxes[0] == nil {
		panic(fmt.Sprintf("plegtest: no sandbox in pod %q", uid)) //nolint:forbidigo // a mistake in the test
	}
	r.ips[lifeKey{uid, pod.Sandboxes[0].ID.ID}] = slices.Clone(ips)
}

// statusOf returns the status that SetStatus set, or the status of the pod's present state. That
// state may differ from the caller's listing, which is the argument asked.
func (r *Runtime) statusOf(asked *pleg.Pod) *pleg.PodStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if set := r.statuses[asked.ID]; set != nil {
		status := *set
		return &status
	}
	pod := r.podLocked(asked.ID)
	if pod == nil {
		return &pleg.PodStatus{ID: asked.ID, Name: asked.Name, Namespace: asked.Namespace}
	}
	status := &pleg.PodStatus{ID: pod.ID, Name: pod.Name, Namespace: pod.Namespace, Source: pod.Source}
	active := "" // ID of the newest sandbox if it is ready
	for i, s := range pod.Sandboxes {
		if s == nil {
			continue
		}
		if i == 0 && s.State == pleg.ContainerStateRunning {
			active = s.ID.ID
		}
		sandbox := r.sandboxStatusLocked(pod, s)
		if i == 0 && sandbox.Network != nil {
			status.IPs = slices.Clone(r.ips[lifeKey{pod.ID, s.ID.ID}])
		}
		status.SandboxStatuses = append(status.SandboxStatuses, sandbox)
	}
	for _, c := range pod.Containers {
		if c == nil {
			continue
		}
		s := r.containerStatusLocked(pod, c)
		status.ContainerStatuses = append(status.ContainerStatuses, s)
		if active != "" && c.PodSandboxID == active {
			status.ActiveContainerStatuses = append(status.ActiveContainerStatuses, s)
		}
	}
	return status
}

func (r *Runtime) sandboxStatusLocked(pod *pleg.Pod, s *pleg.Container) *runtimeapi.PodSandboxStatus {
	key := lifeKey{pod.ID, s.ID.ID}
	status := &runtimeapi.PodSandboxStatus{
		Id: s.ID.ID,
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace,
			Uid: string(pod.ID), Attempt: s.Attempt},
		State:          runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
		CreatedAt:      createdAt(s, r.lives[key]).UnixNano(),
		Labels:         s.Labels,
		Annotations:    s.Annotations,
		RuntimeHandler: pod.RuntimeHandler,
	}
	if s.State != pleg.ContainerStateRunning {
		return status
	}
	status.State = runtimeapi.PodSandboxState_SANDBOX_READY
	if ips := r.ips[key]; len(ips) > 0 {
		status.Network = networkStatus(ips)
	}
	return status
}

func (r *Runtime) containerStatusLocked(pod *pleg.Pod, c *pleg.Container) *pleg.Status {
	l := r.lives[lifeKey{pod.ID, c.ID.ID}]
	status := &pleg.Status{
		ID:                  c.ID,
		Name:                c.Name,
		State:               c.State,
		CreatedAt:           createdAt(c, l),
		Image:               c.Image,
		ImageID:             c.ImageID,
		ImageRef:            c.ImageRef,
		ImageRuntimeHandler: c.ImageRuntimeHandler,
		Hash:                c.Hash,
		RestartCount:        l.restartCount,
		PodSandboxID:        c.PodSandboxID,
		Labels:              c.Labels,
		Annotations:         c.Annotations,
		Source:              c.Source,
	}
	switch c.State {
	case pleg.ContainerStateRunning:
		status.StartedAt = l.startedAt
	case pleg.ContainerStateExited:
		status.StartedAt, status.FinishedAt = l.startedAt, l.finishedAt
		status.ExitCode, status.Reason = l.exitCode, l.reason
	case pleg.ContainerStateCreated, pleg.ContainerStateUnknown:
	}
	return status
}

func createdAt(c *pleg.Container, l life) time.Time {
	if c.CreatedAt != 0 {
		return time.Unix(0, c.CreatedAt)
	}
	return l.createdAt
}

func networkStatus(ips []string) *runtimeapi.PodSandboxNetworkStatus {
	network := &runtimeapi.PodSandboxNetworkStatus{Ip: ips[0]}
	for _, ip := range ips[1:] {
		network.AdditionalIps = append(network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
	}
	return network
}
