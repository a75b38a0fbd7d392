package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Only the generator calls the methods below.

// giveTo empties the cache for a generator. Before a reader blocks, it calls onBlocked in its own
// goroutine, without a lock. onBlocked must not block.
func (c *PodCache) giveTo(onBlocked func(uid types.UID)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onBlocked = onBlocked
	c.entries, c.index, c.global = nil, cacheIndex{}, time.Time{}
}

// advance sets the time of the index, which then deletes old lost keys.
func (c *PodCache) advance(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.advance(now)
}

// store stores the result of an inspection. made is the stamp of the list for which the inspection was
// made. observed is the stamp of the newest list that confirms the result. For held, see cacheEntry.
func (c *PodCache) store(uid types.UID, status *PodStatus, err error, made, observed stamp, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if status != nil {
		status.TimeStamp = made.Time
		if len(status.IPs) == 0 {
			status.IPs = inheritedIPs(c.readLocked(uid).status, status)
		}
	}
	c.setLocked(uid, status, err, observed.Time, held)
}

// storeExits stores the newer statuses of the pod's exited containers. The time at which the pod
// was observed stays the same.
func (c *PodCache) storeExits(pod *Pod, newer map[string]*Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(pod.ID)
	was := *e
	status := *cmp.Or(e.status, emptyStatus(pod.ID))
	exits := make(map[string]*Status)
	for _, container := range pod.Containers {
		if s := newer[container.ID.ID]; hasExited(s) {
			exits[s.ID.ID] = s
		}
	}
	add := func(c *Container) *Status { return exits[c.ID.ID] }
	status.ContainerStatuses = withMissing(withStatuses(status.ContainerStatuses, exits), pod, add)
	status.ActiveContainerStatuses = withStatuses(status.ActiveContainerStatuses, exits)
	e.status = &status
	c.indexLocked(pod.ID, e, &was)
}

// setObserved sets cacheEntry.observed and cacheEntry.held.
func (c *PodCache) setObserved(uid types.UID, at stamp, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observeLocked(uid, at.Time, held)
}

// setListed sets the listed pod. The pod may not have a status yet.
func (c *PodCache) setListed(pod *Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(pod.ID)
	was := *e
	e.listed = pod
	c.indexLocked(pod.ID, e, &was)
}

// inheritedIPs returns the addresses for a status without addresses. A pod with a ready sandbox has
// no address yet. Any other pod keeps its last addresses, because its network was torn down.
func inheritedIPs(last, status *PodStatus) []string {
	if slices.ContainsFunc(status.SandboxStatuses, isReady) {
		return status.IPs
	}
	return last.IPs
}
