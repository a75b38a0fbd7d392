package pleg

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// PodCache is a cache of pod statuses. A generator writes it, and any goroutine may read it. Its
// methods include the six methods of the kubelet's Cache. The zero value is an empty cache. A
// PodCache must not be copied after first use. New empties the cache that its generator will write.
// Stop an earlier generator of the same cache first.
//
// Get and Lookup find a pod by its UID. ByContainerID, ByName and ByIP find pods by container ID,
// name or address. All five return the cached state, however old it is, and never block. Their time
// depends only on how many pods have the name, the address, or the first 12 characters of the ID.
// GetNewerThan and LookupNewerThan wait for state that was observed after a given time. Statuses are
// never nil, are shared, and must not be modified.
//
// ByContainerID, ByName and ByIP also find pods and containers that are listed but not inspected.
// Of these, the result contains only the IDs, names, image, state and labels; the end of an exited
// container is unknown (Status.EndUnknown).
//
// For one minute of the generator's clock, these methods also find a pod by a container, name or
// address it has lost, because flow logs and kernel events arrive late. The result is then the last
// status with that key, and GoneAt is set. The cache keeps at most 20,000 lost keys, two for each
// container. A cache without a generator keeps none.
//
// Set, SetObservedTime, Delete and UpdateTime are for a cache without a generator. A generator does
// not notice calls of these methods, and readers may then be given wrong or old state.
type PodCache struct {
	mu      sync.RWMutex // guards the fields below
	entries map[types.UID]*cacheEntry
	index   cacheIndex
	// global is when the newest full list began.
	global    time.Time
	readers   map[types.UID]map[*blockedReader]bool
	onBlocked func(uid types.UID) // called before a reader blocks; nil without a generator
}

// blockedReader is a reader that waits for newer state. ch has a buffer for one answer.
type blockedReader struct {
	minTime time.Time
	ch      chan reading
}

type reading struct {
	status *PodStatus
	exists bool
	err    error
}

// NewCache returns an empty cache.
func NewCache() *PodCache { return &PodCache{} }

// Get returns a pod's last good status, and the error of the last inspection if it failed. For an
// unknown pod, the status contains only the ID. Get never blocks.
func (c *PodCache) Get(uid types.UID) (*PodStatus, error) {
	status, _, err := c.Lookup(uid)
	return status, err
}

// GetAll returns the status of every pod that has been inspected, sorted by UID.
func (c *PodCache) GetAll() []*PodStatus {
	c.mu.RLock()
	all := make([]*PodStatus, 0, len(c.entries))
	for _, e := range c.entries {
		if e.status != nil {
			all = append(all, e.status)
		}
	}
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b *PodStatus) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return all
}

// GetNewerThan is like Get, but blocks until the pod's state was observed after minTime. A caller
// cannot cancel GetNewerThan; use LookupNewerThan to pass a context.
func (c *PodCache) GetNewerThan(uid types.UID, minTime time.Time) (*PodStatus, error) {
	a, _ := c.wait(context.Background(), uid, minTime) //nolint:forbidigo // the drop-in form has none, and it does not end
	return a.status, a.err
}

// wait blocks until the state of a pod was observed after minTime. If ctx ends first, the error wraps its cause.
func (c *PodCache) wait(ctx context.Context, uid types.UID, minTime time.Time) (reading, error) {
	c.mu.Lock()
	if c.freshLocked(uid, minTime) {
		defer c.mu.Unlock()
		return c.readLocked(uid), nil
	}
	r := c.blockLocked(uid, minTime)
	onBlocked := c.onBlocked
	c.mu.Unlock()
	if onBlocked != nil {
		onBlocked(uid)
	}

	select {
	case answer := <-r.ch:
		return answer, nil
	case <-ctx.Done():
	}
	if c.withdraw(uid, r) {
		return reading{}, fmt.Errorf("waiting for a status of pod %s newer than %s: %w",
			uid, minTime.Format(time.RFC3339Nano), context.Cause(ctx))
	}
	return <-r.ch, nil // the answer was sent before the reader could be withdrawn
}

// BlockedReaders returns the number of readers blocked in GetNewerThan and LookupNewerThan.
func (c *PodCache) BlockedReaders() (blocked int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, readers := range c.readers {
		blocked += len(readers)
	}
	return blocked
}

// entryLocked returns the entry of a pod, and adds it if there is none.
func (c *PodCache) entryLocked(uid types.UID) *cacheEntry {
	e := c.entries[uid]
	if e == nil {
		e = &cacheEntry{}
		put(&c.entries, uid, e)
	}
	return e
}

// forgetLocked deletes an entry without a status or a listed pod if full lists confirm the absence.
func (c *PodCache) forgetLocked(uid types.UID, e *cacheEntry) {
	if e.status == nil && e.listed == nil && !e.held && !e.observed.After(c.global) {
		delete(c.entries, uid)
	}
}

// Set stores the result of an inspection. timestamp is the start of the list for which the
// inspection was made. If the cache holds a status for a later list, Set stores nothing and returns
// false. If status is nil and err is not, the last good status is kept.
func (c *PodCache) Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) (updated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setLocked(uid, status, err, timestamp, false)
}

func (c *PodCache) setLocked(uid types.UID, status *PodStatus, err error, timestamp time.Time, held bool,
) (updated bool) {
	e := c.entryLocked(uid)
	if e.status != nil && e.stored.After(timestamp) {
		return false
	}
	was := *e
	switch {
	case status != nil:
		e.status = status
	case err == nil || was.status == nil:
		e.status = emptyStatus(uid)
	}
	e.err, e.stored, e.observed, e.held = err, timestamp, timestamp, held
	c.indexLocked(uid, e, &was)
	c.wakeLocked(uid)
	return true
}

// SetObservedTime records that a list that began at timestamp confirms the cached state of the pod.
// If the pod is not in the cache, the list confirms that it is absent.
func (c *PodCache) SetObservedTime(uid types.UID, timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observeLocked(uid, later(c.entryLocked(uid).observed, timestamp), false)
}

// observeLocked sets cacheEntry.observed and cacheEntry.held.
func (c *PodCache) observeLocked(uid types.UID, at time.Time, held bool) {
	e := c.entryLocked(uid)
	e.observed, e.held = at, held
	c.forgetLocked(uid, e)
	c.wakeLocked(uid)
}

// Delete removes a pod.
func (c *PodCache) Delete(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[uid]
	if e == nil {
		return
	}
	was := *e
	e.status, e.listed = nil, nil
	c.indexLocked(uid, e, &was)
	*e = cacheEntry{}
	c.forgetLocked(uid, e)
	c.wakeLocked(uid)
}

// UpdateTime records that a full list began at timestamp. The list confirms the cached state of
// every pod in the cache, and shows that all other pods are absent.
func (c *PodCache) UpdateTime(timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.global = later(c.global, timestamp)
	for uid := range c.readers {
		c.wakeLocked(uid)
	}
}

// freshLocked reports whether the pod's state was observed after minTime. Reads and wake-ups use no other rule.
func (c *PodCache) freshLocked(uid types.UID, minTime time.Time) bool {
	return c.observedLocked(uid).After(minTime)
}

// observedLocked returns the start of the newest list that confirmed the pod's state.
func (c *PodCache) observedLocked(uid types.UID) time.Time {
	switch e := c.entries[uid]; {
	case e == nil:
		return c.global
	case e.held:
		return e.observed
	default:
		return later(e.observed, c.global)
	}
}

func (c *PodCache) readLocked(uid types.UID) reading {
	e := c.entries[uid]
	switch {
	case e != nil && e.status != nil:
		return reading{e.status, true, e.err}
	case e != nil && e.listed != nil:
		return reading{emptyStatus(uid), true, nil}
	}
	return reading{emptyStatus(uid), false, nil}
}

func (c *PodCache) blockLocked(uid types.UID, minTime time.Time) *blockedReader {
	r := &blockedReader{minTime: minTime, ch: make(chan reading, 1)}
	if c.readers[uid] == nil {
		put(&c.readers, uid, make(map[*blockedReader]bool))
	}
	c.readers[uid][r] = true
	return r
}

// wakeLocked answers the pod's blocked readers for which the state is now new enough.
func (c *PodCache) wakeLocked(uid types.UID) {
	for r := range c.readers[uid] {
		if c.freshLocked(uid, r.minTime) {
			r.ch <- c.readLocked(uid)
			c.removeLocked(uid, r)
		}
	}
}

// withdraw removes a reader that gave up. It returns false if the reader was already answered.
func (c *PodCache) withdraw(uid types.UID, r *blockedReader) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	waits := c.readers[uid][r]
	c.removeLocked(uid, r)
	return waits
}

// removeLocked removes a reader, if it is still blocked.
func (c *PodCache) removeLocked(uid types.UID, r *blockedReader) {
	delete(c.readers[uid], r)
	if len(c.readers[uid]) == 0 {
		delete(c.readers, uid)
	}
}

// Lookup is like Get, and also reports whether a list shows the pod. If the pod does not exist or
// was not inspected yet, the status contains only the ID.
//
// A runtime lists a pod only after its sandbox runs. Until then, Lookup reports false although the
// pod's cgroup and volumes exist: for example, while its network is being set up. A cleaner must
// therefore delete only the resources of pods that were listed before.
func (c *PodCache) Lookup(uid types.UID) (status *PodStatus, exists bool, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	a := c.readLocked(uid)
	return a.status, a.exists, a.err
}

// LookupNewerThan is like Lookup, but waits until the pod's state was observed after minTime. To wait for the
// present state, pass the current time of the generator's clock. If ctx ends first, it returns the result of
// Lookup and an error that wraps the cause. A state that is new enough is returned even if ctx has ended.
func (c *PodCache) LookupNewerThan(ctx context.Context, uid types.UID, minTime time.Time,
) (status *PodStatus, exists bool, err error) {
	a, late := c.wait(ctx, uid, minTime)
	if late != nil {
		status, exists, _ = c.Lookup(uid)
		return status, exists, late
	}
	return a.status, a.exists, a.err
}

// ByContainerID returns the status of the pod that contains a container or sandbox. It accepts the
// runtime's ID with or without a prefix such as "containerd://". The first 12 or more characters
// are enough if no other container's ID starts with them. If several pods list the ID, which is bad
// data, the newest pod is returned. If found is false, the status is empty.
func (c *PodCache) ByContainerID(id string) (status *PodStatus, found bool) {
	id = withoutType(id)
	has := ""
	statuses := c.find(containerKey(id))
	if len(statuses) == 0 {
		statuses = c.find(shortKey(id))
	}
	for _, s := range statuses {
		switch full := s.fullID(id); {
		case full == "" || full == has:
		case status != nil:
			return &PodStatus{}, false
		default:
			status, has = s, full
		}
	}
	return cmp.Or(status, &PodStatus{}), status != nil
}

// ByName returns the statuses of the pods with a name, newest sandbox first. Several pods match
// while a pod is being replaced by a pod with the same name. Pods that are gone come last. An empty
// name finds nothing.
func (c *PodCache) ByName(namespace, name string) []*PodStatus {
	return c.find(indexKey{indexName, namespace, name})
}

// ByIP returns the statuses of the pods with an IPv4 or IPv6 address in any form. Pods with a ready
// sandbox come first, then ended pods that keep the address, each group newest first. Pods that
// have lost the address come last. The host's address finds all pods that the runtime reports with
// it.
func (c *PodCache) ByIP(ip string) []*PodStatus {
	return c.find(indexKey{indexIP, "", canonicalIP(ip)})
}

// find returns the statuses of pods with the key, newest first. Pods that have lost the key come last.
func (c *PodCache) find(key indexKey) (statuses []*PodStatus) {
	c.mu.RLock()
	for uid, went := range c.index.pods[key] {
		if went != nil {
			statuses = append(statuses, went.status)
		} else {
			statuses = append(statuses, c.entries[uid].withListed(uid))
		}
	}
	c.mu.RUnlock()
	uses := func(s *PodStatus) int {
		return oneIf[int](key.kind == indexIP && slices.ContainsFunc(s.SandboxStatuses, isReady))
	}
	slices.SortFunc(statuses, func(a, b *PodStatus) int {
		if a.GoneAt.IsZero() != b.GoneAt.IsZero() {
			return a.GoneAt.Compare(b.GoneAt)
		}
		return cmp.Or(b.GoneAt.Compare(a.GoneAt), uses(b)-uses(a), cmp.Compare(createdAt(b), createdAt(a)),
			cmp.Compare(a.ID, b.ID))
	})
	return statuses
}

// indexLocked updates the index after e.status or e.listed has changed. "was" is the old entry.
func (c *PodCache) indexLocked(uid types.UID, e, was *cacheEntry) {
	e.keys = c.index.replace(uid, e, was)
}

// createdAt returns when the newest sandbox or container was created, in nanoseconds since 1970.
func createdAt(status *PodStatus) (newest int64) {
	for _, s := range status.SandboxStatuses {
		newest = max(newest, s.GetCreatedAt())
	}
	for _, s := range status.ContainerStatuses {
		if s != nil && !s.CreatedAt.IsZero() {
			newest = max(newest, s.CreatedAt.UnixNano())
		}
	}
	return newest
}
