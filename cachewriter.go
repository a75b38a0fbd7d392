package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cacheWriter writes the cache for its owner, a generator. It writes nothing if the cache has
// another owner.
type cacheWriter struct {
	cache *PodCache
	owner cacheOwner
}

// write calls a function with the cache's lock held, if owner still owns the cache.
func (w cacheWriter) write(write func(c *PodCache)) {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	if w.cache.owner == w.owner {
		write(w.cache)
	}
}

// advance sets the time of the index, which forgets lost keys.
func (w cacheWriter) advance(now time.Time) { w.write(func(c *PodCache) { c.index.advance(now) }) }

// store stores the result of an inspection. made is the list that the inspection was made for,
// observed the newest list that confirms the result. For held, see cacheEntry.
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

// storeExits replaces the statuses of containers that have exited by those in newer, and adds
// missing ones. It does not change when the pod was observed.
func (w cacheWriter) storeExits(pod *Pod, newer map[string]*Status) {
	w.write(func(c *PodCache) {
		e := c.entryLocked(pod.ID)
		old := e.status
		status := *cmp.Or(old, emptyStatus(pod.ID))
		exits := make(map[string]*Status)
		known := finder(status.ContainerStatuses)
		status.ContainerStatuses = slices.Clip(status.ContainerStatuses) // so that append copies it
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

func (w cacheWriter) remove(uid types.UID) { w.write(func(c *PodCache) { c.deleteLocked(uid) }) }

// setObserved sets when the pod was observed, and cacheEntry.held.
func (w cacheWriter) setObserved(uid types.UID, at stamp, held bool) {
	w.write(func(c *PodCache) { c.observeLocked(uid, at.Time, held) })
}

// setAllObserved sets when all pods but the held ones were observed.
func (w cacheWriter) setAllObserved(at time.Time) {
	w.write(func(c *PodCache) { c.updateTimeLocked(at) })
}

func (w cacheWriter) setListed(pod *Pod) { w.write(func(c *PodCache) { c.listLocked(pod) }) }

// addresses returns the addresses in the cached status of a pod.
func (w cacheWriter) addresses(uid types.UID) []string {
	w.cache.mu.RLock()
	defer w.cache.mu.RUnlock()
	return w.cache.readLocked(uid).status.IPs
}

// podsWithContainer returns the pods that may have a container or sandbox, sorted by UID. The index
// compares only the beginning of the ID.
func (w cacheWriter) podsWithContainer(id string) (uids []types.UID) {
	w.cache.mu.RLock()
	defer w.cache.mu.RUnlock()
	return w.cache.index.find(containerKey(id))
}

// inheritedIPs returns the addresses for a status that has none. A pod whose network is torn down
// keeps its last addresses; a pod with a ready sandbox has none yet.
func inheritedIPs(last, status *PodStatus) []string {
	for _, s := range status.SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return status.IPs
		}
	}
	return last.IPs
}
