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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodCache is a pod status cache: a generator writes it, and readers read it. It has the six methods
// of the kubelet's Cache. The statuses that it returns are never nil, are shared and must not be
// modified. Its methods are safe for concurrent use. The zero value is an empty cache. It must not be
// copied after first use.
//
// A PodCache belongs to one generator: the last that NewGenericPLEG was called for. It is empty then,
// and an earlier generator, which should have been stopped, writes nothing into it any more.
type PodCache struct {
	mu sync.RWMutex

	// Guarded by mu.

	entries map[types.UID]*cacheEntry
	// index finds pods by what entries say, or said.
	index cacheIndex
	// global is the time of the newest full list.
	global  time.Time
	readers map[types.UID][]*blockedReader
	waiting int
	// owner is the generator; nil for none.
	owner cacheOwner
}

// cacheOwner is a generator.
type cacheOwner interface {
	// onReaderBlocked is called with the pod of a reader that begins to block, in its goroutine,
	// without a lock held. It does not block.
	onReaderBlocked(uid types.UID)
}

// cacheEntry is what the cache has of one pod: its status, that it is listed, or when a single-pod
// list showed it absent.
type cacheEntry struct {
	// status is the last good one, or an empty one if no inspection has succeeded; nil if the
	// pod is absent or was not inspected yet.
	status *PodStatus
	err    error
	// listed is the pod as a list shows it; nil if it is absent.
	listed *Pod
	keys   []indexKey // of status and listed
	// stored is how fresh the status was when it was stored.
	stored time.Time
	// observed is the time of the newest list by which the pod was observed.
	observed time.Time
	// held is true when full lists that are newer do not make the entry fresher.
	held bool
}

// blockedReader is a reader waiting in GetNewerThan. Whoever holds the lock and
// finds it satisfied removes it and sends, once; the channel has room for that.
type blockedReader struct {
	minTime time.Time
	ch      chan reading
}

// reading is what a reader gets.
type reading struct {
	status *PodStatus
	exists bool
	err    error
}

// NewCache returns an empty cache.
func NewCache() *PodCache { return &PodCache{} }

// giveTo makes the cache that of a generator, and empties it: what another has left says nothing
// about the pods of this one.
func (c *PodCache) giveTo(owner cacheOwner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner = owner
	c.entries, c.index, c.global = nil, cacheIndex{}, time.Time{}
}

// put sets an element of a map that may not be there yet.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[key] = value
}

// Get returns the last good status of a pod, and the error of its last inspection if that failed. The
// status of an unknown pod is empty but for its ID. Get never blocks.
func (c *PodCache) Get(uid types.UID) (*PodStatus, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	a := c.readLocked(uid)
	return a.status, a.err
}

// GetAll returns the status of every known pod, sorted by UID.
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

// GetNewerThan is like Get, but blocks until the state that it returns was observed after minTime. It
// cannot be cancelled; LookupNewerThan can.
func (c *PodCache) GetNewerThan(uid types.UID, minTime time.Time) (*PodStatus, error) {
	a, _ := c.wait(context.Background(), uid, minTime) //nolint:forbidigo // the drop-in form has none, and it does not end
	return a.status, a.err
}

// wait waits until the state of a pod was observed after minTime, and returns it. If ctx ends
// before that, the error wraps its cause.
func (c *PodCache) wait(ctx context.Context, uid types.UID, minTime time.Time) (reading, error) {
	c.mu.RLock()
	fresh, answer := c.freshLocked(uid, minTime), c.readLocked(uid)
	c.mu.RUnlock()
	if fresh {
		return answer, nil
	}

	r := &blockedReader{minTime: minTime, ch: make(chan reading, 1)}
	c.mu.Lock()
	if c.freshLocked(uid, minTime) { // it became so between the two locks
		answer = c.readLocked(uid)
		c.mu.Unlock()
		return answer, nil
	}
	put(&c.readers, uid, append(c.readers[uid], r))
	c.waiting++
	owner := c.owner
	c.mu.Unlock()
	if owner != nil {
		owner.onReaderBlocked(uid)
	}

	select {
	case answer = <-r.ch:
		return answer, nil
	case <-ctx.Done():
	}
	if c.withdraw(uid, r) {
		return reading{}, fmt.Errorf("waiting for a status of pod %s newer than %s: %w",
			uid, minTime.Format(time.RFC3339Nano), context.Cause(ctx))
	}
	return <-r.ch, nil // granted before it could be withdrawn
}

// BlockedReaders returns the number of readers blocked in GetNewerThan.
func (c *PodCache) BlockedReaders() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.waiting
}

// entryLocked returns the entry of a pod, a new one if need be.
func (c *PodCache) entryLocked(uid types.UID) *cacheEntry {
	e := c.entries[uid]
	if e == nil {
		e = &cacheEntry{}
		put(&c.entries, uid, e)
	}
	return e
}

// forgetLocked drops an entry that says no more than the global time.
func (c *PodCache) forgetLocked(uid types.UID, e *cacheEntry) {
	if e.status == nil && e.listed == nil && !e.held && !e.observed.After(c.global) {
		delete(c.entries, uid)
	}
}

// Set stores the result of an inspection that was made for a list begun at timestamp, unless the
// cache holds the result for a later list; updated reports whether it was stored. With an error and
// a nil status, the last good status stays beside the error.
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
	old := e.status
	switch {
	case status != nil:
		e.status = status
	case err == nil || old == nil:
		e.status = emptyStatus(uid)
	}
	e.err, e.stored, e.observed, e.held = err, timestamp, timestamp, held
	c.indexLocked(uid, e, old)
	c.wakeLocked(uid)
	return true
}

// SetObservedTime says that a list begun at timestamp confirms what the cache holds of this pod; for
// a pod that is not in the cache, that it is absent.
func (c *PodCache) SetObservedTime(uid types.UID, timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(uid)
	c.observeLocked(uid, later(e.observed, timestamp), false)
}

// observeLocked notes how fresh a pod is, and whether newer full lists do not make it fresher.
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
	c.deleteLocked(uid)
}

func (c *PodCache) deleteLocked(uid types.UID) {
	e := c.entries[uid]
	if e == nil {
		return
	}
	old := e.status
	e.status, e.listed = nil, nil
	c.indexLocked(uid, e, old)
	*e = cacheEntry{}
	c.forgetLocked(uid, e)
	c.wakeLocked(uid)
}

// UpdateTime says that a full list begun at timestamp confirms what the cache holds of every pod,
// and the absence of all others.
func (c *PodCache) UpdateTime(timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.updateTimeLocked(timestamp)
}

func (c *PodCache) updateTimeLocked(timestamp time.Time) {
	c.global = later(c.global, timestamp)
	for uid := range c.readers {
		c.wakeLocked(uid)
	}
}

// listLocked notes that a list shows a pod, which may have no status yet.
func (c *PodCache) listLocked(pod *Pod) {
	e := c.entryLocked(pod.ID)
	e.listed = pod
	c.indexLocked(pod.ID, e, e.status)
}

// freshLocked is the one rule of freshness: the state of a pod satisfies minTime when
// it was observed after minTime. Reads and wake-ups both use it.
func (c *PodCache) freshLocked(uid types.UID, minTime time.Time) bool {
	return c.observedLocked(uid).After(minTime)
}

// observedLocked returns the stamp of the newest list that confirmed the state of the
// pod.
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

// wakeLocked answers the pod's blocked readers that are satisfied.
func (c *PodCache) wakeLocked(uid types.UID) {
	readers := c.readers[uid]
	if len(readers) == 0 {
		return
	}
	kept := readers[:0]
	for _, r := range readers {
		if c.freshLocked(uid, r.minTime) {
			r.ch <- c.readLocked(uid)
		} else {
			kept = append(kept, r)
		}
	}
	c.keepLocked(uid, readers, kept)
}

// withdraw removes a reader that gave up, and reports whether it was still there.
func (c *PodCache) withdraw(uid types.UID, r *blockedReader) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	readers := c.readers[uid]
	i := slices.Index(readers, r)
	if i < 0 {
		return false
	}
	c.keepLocked(uid, readers, slices.Delete(readers, i, i+1))
	return true
}

// keepLocked makes kept, a prefix of the same array, the pod's blocked readers.
func (c *PodCache) keepLocked(uid types.UID, readers, kept []*blockedReader) {
	c.waiting -= len(readers) - len(kept)
	clear(readers[len(kept):])
	if len(kept) == 0 {
		delete(c.readers, uid)
		return
	}
	c.readers[uid] = kept
}

func emptyStatus(uid types.UID) *PodStatus { return &PodStatus{ID: uid} }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Lookup is Get, and also reports whether the pod exists as far as the cache knows: whether a list
// shows it. The status has only the ID if the pod does not exist or was not inspected yet.
//
// Runtimes list a pod once its sandbox runs. Before that, while the network is being set up or keeps
// failing, the pod's cgroup and volumes exist and Lookup reports false. So a program must not delete
// them for that reason alone: delete what belonged to a pod that was listed before.
//
// The statuses that it and the other look-ups return are never nil, are shared and must not be
// modified. They are those that the cache holds at the time of the call, however fresh. A look-up
// takes a time that does not depend on the number of pods, and never blocks.
func (c *PodCache) Lookup(uid types.UID) (status *PodStatus, exists bool, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	a := c.readLocked(uid)
	return a.status, a.exists, a.err
}

// LookupNewerThan is like Lookup, but waits until the state that it returns was observed after
// minTime: for "as it is now", the time by the generator's clock. When ctx ends before that, it
// returns what Lookup does, and an error that wraps the cause of ctx. A state that is new enough
// is returned even if ctx has ended.
func (c *PodCache) LookupNewerThan(ctx context.Context, uid types.UID, minTime time.Time,
) (status *PodStatus, exists bool, err error) {
	a, late := c.wait(ctx, uid, minTime)
	if late != nil {
		status, exists, _ = c.Lookup(uid)
		return status, exists, late
	}
	return a.status, a.exists, a.err
}

// ByContainerID returns the status of the pod that has a container or sandbox. The ID is
// the runtime's, or in the form "containerd://3f2a…"; what stands before the ID is not
// compared. Its beginning, of 12 characters or more, is enough if no other container has it.
//
// A container that is listed and not inspected yet is found too. Its status then has what the list
// shows: its name, image, state and labels. If more than one status has the ID, which is bad data,
// it is the newest pod's.
//
// What is gone is found for a minute, because flow logs and the kernel's events come later than
// the end: a container, a name or an address that a pod had, and the pods themselves. The status
// is then the last that had it, with GoneAt. At most 10,000 of these are kept, by the generator's
// clock; without a generator, none.
func (c *PodCache) ByContainerID(id string) (status *PodStatus, found bool) {
	id = withoutType(id)
	has := ""
	for _, s := range c.find(containerKey(id)) {
		switch full := s.fullID(id); {
		case full == "" || full == has:
		case status != nil:
			return &PodStatus{}, false
		default:
			status, has = s, full
		}
	}
	if status == nil {
		return &PodStatus{}, false
	}
	return status, true
}

// fullID returns the ID of a container or sandbox that an ID, or its beginning, stands for; empty for
// none.
func (s *PodStatus) fullID(id string) string {
	for _, c := range s.ContainerStatuses {
		if c != nil && isID(c.ID.ID, id) {
			return c.ID.ID
		}
	}
	for _, sandbox := range s.SandboxStatuses {
		if isID(sandbox.GetId(), id) {
			return sandbox.GetId()
		}
	}
	return ""
}

// isID reports whether an ID, or the beginning of one, stands for a full ID.
func isID(full, id string) bool {
	return full == id || len(id) >= shortestID && strings.HasPrefix(full, id)
}

// ByName returns the statuses of the pods with a name, newest first: those whose newest
// sandbox was created last. There is more than one while a pod is being replaced by one of
// its name, and none for the empty name. Those that are gone for up to a minute come last, and
// have GoneAt.
func (c *PodCache) ByName(namespace, name string) []*PodStatus {
	return c.find(indexKey{indexName, namespace, name})
}

// ByIP returns the statuses of the pods with an address, newest first, and then of those that had
// it up to a minute ago, which have GoneAt. Pods on the host's
// network share its address, if the runtime reports it; a pod whose network is gone keeps
// the last that it had, which another may have by now. The address may be in any form of
// IPv4 or IPv6.
func (c *PodCache) ByIP(ip string) []*PodStatus {
	return c.find(indexKey{indexIP, "", canonicalIP(ip)})
}

// find returns the statuses with a key, newest first, and then those that had it, the last to go
// first.
func (c *PodCache) find(key indexKey) (statuses []*PodStatus) {
	c.mu.RLock()
	for uid, went := range c.index.pods[key] {
		if went != nil {
			statuses = append(statuses, went.status)
		} else if e := c.entries[uid]; key.kind == indexContainer {
			statuses = append(statuses, e.withListed(uid))
		} else {
			statuses = append(statuses, e.status) // which has the key
		}
	}
	c.mu.RUnlock()
	slices.SortFunc(statuses, func(a, b *PodStatus) int {
		if a.GoneAt.IsZero() != b.GoneAt.IsZero() {
			return a.GoneAt.Compare(b.GoneAt)
		}
		return cmp.Or(b.GoneAt.Compare(a.GoneAt), cmp.Compare(createdAt(b), createdAt(a)), cmp.Compare(a.ID, b.ID))
	})
	return statuses
}

// withListed returns the status, or a copy with the containers and sandboxes that are listed and not
// inspected yet.
func (e *cacheEntry) withListed(uid types.UID) *PodStatus {
	status := cmp.Or(e.status, emptyStatus(uid))
	full := *status
	if e.status == nil && e.listed != nil {
		full.Name, full.Namespace, full.Labels = e.listed.Name, e.listed.Namespace, e.listed.Labels
		full.Annotations = e.listed.Annotations
	}
	inspected := finder(status.ContainerStatuses)
	full.ContainerStatuses = slices.Clip(full.ContainerStatuses)
	for i, c := range e.listed.containers() {
		if inspected(i, c.ID.ID) == nil {
			full.ContainerStatuses = append(full.ContainerStatuses, listedStatus(c))
		}
	}
	full.SandboxStatuses = slices.Clip(full.SandboxStatuses)
	for _, c := range e.listed.sandboxes() {
		if status.fullID(c.ID.ID) == "" {
			full.SandboxStatuses = append(full.SandboxStatuses, listedSandbox(c))
		}
	}
	was := len(status.ContainerStatuses) + len(status.SandboxStatuses)
	if was == len(full.ContainerStatuses)+len(full.SandboxStatuses) {
		return status
	}
	return &full
}

// listedSandbox returns what a list shows of a sandbox as a status.
func listedSandbox(c *Container) *runtimeapi.PodSandboxStatus {
	state := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if c.State == ContainerStateRunning {
		state = runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return &runtimeapi.PodSandboxStatus{Id: c.ID.ID, CreatedAt: c.CreatedAt, State: state}
}

// indexLocked takes in that an entry has another status than the old one, or is listed otherwise.
func (c *PodCache) indexLocked(uid types.UID, e *cacheEntry, old *PodStatus) {
	e.keys = c.index.replace(uid, e.keys, old, e.listed, e.status)
}

// createdAt returns when a pod's newest sandbox was created or, without sandboxes, its
// newest container, in nanoseconds since 1970.
func createdAt(status *PodStatus) int64 {
	var newest int64
	for _, s := range status.SandboxStatuses {
		newest = max(newest, s.GetCreatedAt())
	}
	if len(status.SandboxStatuses) > 0 {
		return newest
	}
	for _, s := range status.ContainerStatuses {
		if s != nil && !s.CreatedAt.IsZero() {
			newest = max(newest, s.CreatedAt.UnixNano())
		}
	}
	return newest
}
