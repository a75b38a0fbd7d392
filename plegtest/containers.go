package plegtest

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// lifeKey identifies a container or a sandbox of a pod.
type lifeKey struct {
	uid types.UID
	id  string
}

// life contains the fields of a container's status that a list does not contain.
type life struct {
	createdAt, startedAt, finishedAt time.Time
	exitCode                         int
	reason                           string
	restartCount                     int
	neverRan                         bool // the container exited before its start
}

// SetContainer sets the state of a container. If the pod or the container does not exist, NewPod or
// NewContainer creates it. A new container is the first in the list, as the newest. If the
// container is already in that state, nothing changes.
func (r *Runtime) SetContainer(uid types.UID, id string, state pleg.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setContainerLocked(uid, id, state)
}

// ExitContainer makes a container exit with an exit code and a reason, such as "Completed", "Error"
// or "OOMKilled". If the container has already exited, only its code and reason change. If it never
// ran, it has no StartedAt, as after the reason "StartError".
// ExitContainer panics if the pod does not contain the container.
func (r *Runtime) ExitContainer(uid types.UID, id string, exitCode int, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := r.mustFindPodLocked(uid)
	i := mustFind(pod, pod.Containers, "container", id)
	key := lifeKey{uid, id}
	l := r.lives[key]
	l.exitCode, l.reason = exitCode, reason
	l.neverRan = l.neverRan || pod.Containers[i].State == pleg.ContainerStateCreated
	r.lives[key] = l
	r.setContainerLocked(uid, id, pleg.ContainerStateExited)
}

// RestartContainer starts a successor of container id, with the ID newID. The successor has the
// same name, sandbox, labels and annotations. Its attempt and restart count are higher by one. It
// is the first in the list, as the newest. Container id stays in the list as exited; if it was
// running, its exit code is 137. RestartContainer panics if the pod does not contain container id.
func (r *Runtime) RestartContainer(uid types.UID, id, newID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := lifeKey{uid, id}
	l := r.lives[key]
	old := r.mustFindPodLocked(uid)
	i := mustFind(old, old.Containers, "container", id)
	next := *old.Containers[i]
	next.ID.ID = newID
	next.State = pleg.ContainerStateRunning
	next.CreatedAt = r.clock.Now().UnixNano()
	next.Attempt++
	if old.Containers[i].State != pleg.ContainerStateExited {
		l.exitCode, l.reason = 137, "Error"
		r.lives[key] = l
	}
	r.setContainerLocked(uid, id, pleg.ContainerStateExited)
	r.lives[lifeKey{uid, newID}] = life{restartCount: l.restartCount + 1}
	pod := *r.podLocked(uid)
	pod.Containers = slices.Insert(slices.Clone(pod.Containers), 0, &next)
	r.putLocked(&pod)
}

// RemoveContainer removes a container from its pod. It panics if the pod does not contain the
// container.
func (r *Runtime) RemoveContainer(uid types.UID, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := r.mustFindPodLocked(uid)
	i := mustFind(pod, pod.Containers, "container", id)
	without := *pod
	without.Containers = slices.Delete(slices.Clone(pod.Containers), i, i+1)
	r.putLocked(&without)
}

// SetSandbox sets the state of a sandbox: running means ready, exited means not ready. A sandbox
// that does not exist is created as the newest, with the pod's labels and annotations and the next
// attempt. A pod that does not exist is created with only this sandbox.
func (r *Runtime) SetSandbox(uid types.UID, id string, state pleg.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := r.podLocked(uid)
	if pod == nil {
		pod = NewPod(uid)
		pod.Sandboxes = nil
	}
	changed := *pod
	changed.Sandboxes = slices.Clone(pod.Sandboxes)
	i := indexOf(pod.Sandboxes, id)
	if i < 0 {
		i = 0
		sandbox := NewSandbox(id, "")
		sandbox.CreatedAt = r.clock.Now().UnixNano()
		sandbox.Labels, sandbox.Annotations = pod.Labels, pod.Annotations
		if len(pod.Sandboxes) > 0 && pod.Sandboxes[0] != nil {
			sandbox.Attempt = pod.Sandboxes[0].Attempt + 1
		}
		changed.CreatedAt = uint64(max(0, sandbox.CreatedAt)) //nolint:gosec // not negative
		changed.Sandboxes = slices.Insert(changed.Sandboxes, 0, sandbox)
	}
	if changed.Sandboxes[i].State == state {
		return
	}
	sandbox := *changed.Sandboxes[i]
	sandbox.State = state
	changed.Sandboxes[i] = &sandbox
	r.putLocked(&changed)
}

// RemoveSandbox removes a sandbox and its containers from its pod. It panics if the pod does not
// contain the sandbox.
func (r *Runtime) RemoveSandbox(uid types.UID, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod := r.mustFindPodLocked(uid)
	mustFind(pod, pod.Sandboxes, "sandbox", id)
	without := *pod
	without.Sandboxes = slices.DeleteFunc(slices.Clone(pod.Sandboxes),
		func(c *pleg.Container) bool { return c != nil && c.ID.ID == id })
	without.Containers = slices.DeleteFunc(slices.Clone(pod.Containers),
		func(c *pleg.Container) bool { return c != nil && c.PodSandboxID == id })
	r.putLocked(&without)
}

// mustFind returns the index of a container or sandbox in list, which belongs to pod. It panics if
// the ID is not in the list, so that a test with a misspelled ID fails.
func mustFind(pod *pleg.Pod, list []*pleg.Container, kind, id string) int {
	i := indexOf(list, id)
	if i < 0 {
		panic(fmt.Sprintf("plegtest: no %s %q in pod %q", kind, id, pod.ID)) //nolint:forbidigo // a mistake in the test
	}
	return i
}

func (r *Runtime) setContainerLocked(uid types.UID, id string, state pleg.State) {
	pod := r.podLocked(uid)
	if pod == nil {
		pod = NewPod(uid)
	}
	changed := *pod
	changed.Containers = slices.Clone(pod.Containers)
	i := indexOf(pod.Containers, id)
	if i < 0 {
		i = 0
		c := NewContainer(id, "")
		c.CreatedAt = r.clock.Now().UnixNano()
		if len(pod.Sandboxes) > 0 && pod.Sandboxes[0] != nil {
			c.PodSandboxID = pod.Sandboxes[0].ID.ID
		}
		changed.Containers = slices.Insert(changed.Containers, 0, c)
	}
	if changed.Containers[i].State == state {
		return
	}
	c := *changed.Containers[i]
	c.State = state
	changed.Containers[i] = &c
	r.putLocked(&changed)
}

// changedLocked updates r.lives and emits the events after pod has replaced old. old is nil for a
// new pod, and pod is nil for a removed pod.
func (r *Runtime) changedLocked(old, pod *pleg.Pod) {
	if old == pod {
		return
	}
	if pod != nil {
		now := r.clock.Now()
		for _, c := range pod.Containers {
			if c != nil {
				key := lifeKey{pod.ID, c.ID.ID}
				r.lives[key] = r.lives[key].seen(c.State, now)
			}
		}
		for _, c := range pod.Sandboxes {
			if c != nil {
				key := lifeKey{pod.ID, c.ID.ID}
				r.lives[key] = r.lives[key].seen(c.State, now)
			}
		}
	}
	if old != nil {
		r.forgetLocked(old, pod)
	}
	if r.emit {
		r.emitChangesLocked(old, pod)
	}
	if r.emitExits && pod != nil {
		r.emitExitsLocked(old, pod)
	}
}

// forgetLocked drops the stored data of containers and sandboxes that are no longer in the pod.
func (r *Runtime) forgetLocked(old, pod *pleg.Pod) {
	for _, c := range slices.Concat(old.Containers, old.Sandboxes) {
		if c == nil || pod != nil && (indexOf(pod.Containers, c.ID.ID) >= 0 ||
			indexOf(pod.Sandboxes, c.ID.ID) >= 0) {
			continue
		}
		delete(r.lives, lifeKey{old.ID, c.ID.ID})
		delete(r.ips, lifeKey{old.ID, c.ID.ID})
	}
}

// seen returns a copy of l with the times that a container in this state must have.
func (l life) seen(state pleg.State, now time.Time) life {
	if l.createdAt.IsZero() {
		l.createdAt = now
	}
	switch state {
	case pleg.ContainerStateRunning:
		if l.startedAt.IsZero() || !l.finishedAt.IsZero() { // the container restarts under the same ID
			l = life{createdAt: l.createdAt, startedAt: now, restartCount: l.restartCount}
		}
	case pleg.ContainerStateExited:
		if l.startedAt.IsZero() && !l.neverRan {
			l.startedAt = now
		}
		if l.finishedAt.IsZero() {
			l.finishedAt = now
		}
		if l.reason == "" && l.exitCode == 0 {
			l.reason = "Completed"
		}
	case pleg.ContainerStateCreated, pleg.ContainerStateUnknown:
	}
	return l
}
