package pleg

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The methods below are the generator's.

// giveTo empties the cache for a generator. onBlocked is called in a reader's goroutine before it
// blocks, without a lock; it must not block.
func (c *PodCache) giveTo(onBlocked func(uid types.UID)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onBlocked = onBlocked
	c.entries, c.index, c.global = nil, cacheIndex{}, time.Time{}
}

// advance sets the time of the index, which forgets lost keys.
func (c *PodCache) advance(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.advance(now)
}

// store stores the result of an inspection. made is the list that the inspection was made for,
// observed the newest list that confirms the result. For held, see cacheEntry.
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

// storeExits replaces the statuses of containers that have exited by those in newer, and adds
// missing ones. It does not change when the pod was observed.
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

// setObserved sets when the pod was observed, and cacheEntry.held.
func (c *PodCache) setObserved(uid types.UID, at stamp, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observeLocked(uid, at.Time, held)
}

// setListed sets the listed pod, which need not have a status yet.
func (c *PodCache) setListed(pod *Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(pod.ID)
	was := *e
	e.listed = pod
	c.indexLocked(pod.ID, e, &was)
}

// inheritedIPs returns the addresses for a status that has none. A pod whose network is torn down
// keeps its last addresses; a pod with a ready sandbox has none yet.
func inheritedIPs(last, status *PodStatus) []string {
	if slices.ContainsFunc(status.SandboxStatuses, isReady) {
		return status.IPs
	}
	return last.IPs
}
