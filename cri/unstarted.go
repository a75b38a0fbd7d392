package cri

import (
	"slices"

	"github.com/kubepleg/pleg"
)

// cri-dockerd lists a sandbox as not ready between its creation and its start. Such a sandbox has
// not died. Its state is reported as unknown until a list shows it ready or with a container.

// dockerName is the runtime's name in cri-dockerd's answer to Version.
const dockerName = "docker"

// showUnstartedLocked records which sandboxes of a listed pod have been started, and sets the state
// of the other sandboxes to unknown. pass is 0 for a full list. For a pod list, it is the number of
// the next pass.
func (h *held) showUnstartedLocked(pod *pleg.Pod, pass uint64) {
	for i, s := range pod.Sandboxes {
		if s.ID.Type != dockerName {
			return
		}
		_, started := h.started[s.ID.ID]
		switch {
		case started:
		case s.State == pleg.ContainerStateRunning || hasContainers(pod, s.ID.ID):
			if len(h.started) < maxListItems { // bounds the map, which only full lists prune
				h.started[s.ID.ID] = pass
			}
		case s.State == pleg.ContainerStateExited:
			unknown := *s
			unknown.State = pleg.ContainerStateUnknown
			pod.Sandboxes[i] = &unknown
		}
	}
}

func hasContainers(pod *pleg.Pod, sandbox string) bool {
	return slices.ContainsFunc(pod.Containers, func(c *pleg.Container) bool { return c.PodSandboxID == sandbox })
}

// pruneStartedLocked forgets the sandboxes that are gone. It also finds sandboxes that only pod
// lists have shown as started so far. It calls the function touch with their pods, so that these
// pods are rebuilt.
func (h *held) pruneStartedLocked(pass uint64, touch func(*heldPod)) {
	for id, first := range h.started {
		switch it := h.items[sandboxes][id]; {
		case it != nil && first > 0:
			h.started[id] = 0
			touch(it.pod)
		case it == nil && first <= pass:
			delete(h.started, id)
		}
	}
}
