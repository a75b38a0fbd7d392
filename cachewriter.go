package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cacheWriter is a generator's side of its cache. It writes nothing once the cache has another
// generator.
type cacheWriter struct {
	cache *PodCache
	owner cacheOwner
}

// write calls a function that writes the cache, with its lock held.
func (w cacheWriter) write(write func(c *PodCache)) {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	if w.cache.owner == w.owner {
		write(w.cache)
	}
}

// advance sets the time.
func (w cacheWriter) advance(now time.Time) { w.write(func(c *PodCache) { c.index.advance(now) }) }

// store stores the result of an inspection that was made for the list stamped made. observed is how
// fresh the pod is with it, and held whether full lists do not make it fresher.
func (w cacheWriter) store(uid types.UID, status *PodStatus, err error, made, observed stamp, held bool) {
	w.write(func(c *PodCache) {
		if status != nil {
			status.TimeStamp = made.Time
			if len(status.IPs) == 0 {
				status.IPs = inheritedIPs(c.readLocked(uid).status, status)
			}
		}
		c.setLocked(uid, status, err, observed.Time, held)
	})
}

// storeExits has the containers of a pod exited in its status that have by newer statuses, and adds
// those that it lacks. The pod becomes no fresher by that.
func (w cacheWriter) storeExits(pod *Pod, newer map[string]*Status) {
	w.write(func(c *PodCache) {
		e := c.entryLocked(pod.ID)
		old := e.status
		status := *cmp.Or(old, emptyStatus(pod.ID))
		exits := make(map[string]*Status)
		known := finder(status.ContainerStatuses)
		status.ContainerStatuses = slices.Clip(status.ContainerStatuses) // an append copies it
		for i, container := range pod.Containers {
			s := newer[container.ID.ID]
			if !hasExited(s) {
				continue
			}
			exits[s.ID.ID] = s
			if known(i, s.ID.ID) == nil {
				status.ContainerStatuses = append(status.ContainerStatuses, s)
			}
		}
		status.ContainerStatuses = withStatuses(status.ContainerStatuses, exits)
		status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, exits)
		e.status = &status
		c.indexLocked(pod.ID, e, old)
	})
}

// remove removes a pod that is absent.
func (w cacheWriter) remove(uid types.UID) { w.write(func(c *PodCache) { c.deleteLocked(uid) }) }

// setObserved sets how fresh a pod is, and whether full lists do not make it fresher.
func (w cacheWriter) setObserved(uid types.UID, at stamp, held bool) {
	w.write(func(c *PodCache) { c.observeLocked(uid, at.Time, held) })
}

// setAllObserved sets how fresh all pods are that are not held.
func (w cacheWriter) setAllObserved(at time.Time) {
	w.write(func(c *PodCache) { c.updateTimeLocked(at) })
}

// setListed notes that a list shows a pod.
func (w cacheWriter) setListed(pod *Pod) { w.write(func(c *PodCache) { c.listLocked(pod) }) }

// addresses returns the addresses in the status of a pod.
func (w cacheWriter) addresses(uid types.UID) []string {
	w.cache.mu.RLock()
	defer w.cache.mu.RUnlock()
	return w.cache.readLocked(uid).status.IPs
}

// podsWithContainer returns the pods that have a container or sandbox with an ID, by UID.
func (w cacheWriter) podsWithContainer(id string) (uids []types.UID) {
	w.cache.mu.RLock()
	defer w.cache.mu.RUnlock()
	return w.cache.index.find(containerKey(id))
}

// inheritedIPs returns the addresses of a pod whose status has none. When its network has been torn
// down, they are the last that it had; a ready sandbox without addresses does not inherit those of
// the last.
func inheritedIPs(last, status *PodStatus) []string {
	for _, s := range status.SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return status.IPs
		}
	}
	return last.IPs
}
