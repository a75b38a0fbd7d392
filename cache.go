package pleg

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Cache is what the generator needs of a pod status cache, and what readers find
// in it. NewCache makes the one that this package brings; another implementation
// best embeds it.
//
// Statuses are shared: nobody modifies one that was set or was got.
type Cache interface {
	// Get returns what is known of the pod now: its last good status, and the
	// error of its last inspection if that failed. A pod that is not known has
	// an empty status with its ID. Get never blocks and never returns a nil
	// status.
	Get(uid types.UID) (*PodStatus, error)
	// GetNewerThan is Get, blocking until what is known was observed after
	// minTime. It cannot be cancelled; PodCache has a form that can.
	GetNewerThan(uid types.UID, minTime time.Time) (*PodStatus, error)
	// Set stores the outcome of an inspection made for a listing stamped
	// timestamp, unless an outcome of a later stamp is there; updated tells
	// whether it did. With an error and no status, the last good status stays
	// beside the error.
	Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) (updated bool)
	// SetObservedTime says that a listing of this pod, stamped timestamp, found
	// what is known of it to be still so; for a pod that is not known, that it
	// was found to be absent.
	SetObservedTime(uid types.UID, timestamp time.Time)
	// Delete removes the pod.
	Delete(uid types.UID)
	// UpdateTime says that a listing of all pods, stamped timestamp, found what
	// is known to be still so for every pod that is not marked as changed, and
	// every pod that is not known to be absent.
	UpdateTime(timestamp time.Time)

	// MarkChanged says that a listing stamped timestamp showed a change in the
	// pod. What was known of it until now stays as fresh as it was, and no
	// UpdateTime makes it fresher, until Set stores an outcome of that stamp or
	// later, or Delete removes the pod.
	MarkChanged(uid types.UID, timestamp time.Time)
	// NotifyBlocked registers the function that is told whenever a reader begins
	// to block, of the pod and of what the reader waits for. It is called on the
	// reader's goroutine without a lock held, and must not block. There is one
	// such function: the generator that owns the cache registers its own.
	NotifyBlocked(blocked func(uid types.UID, minTime time.Time))
}

// PodCache is the Cache of this package. Its methods may be called from any
// goroutine.
type PodCache struct {
	mu sync.RWMutex

	// Guarded by mu.

	entries map[types.UID]*cacheEntry
	// absent has the pods found absent by a look at them alone that was later
	// than the newest listing of all pods.
	absent map[types.UID]time.Time
	// changed has the pods that no global time makes fresh.
	changed map[types.UID]changedMark
	// global is the stamp of the newest listing of all pods.
	global  time.Time
	readers map[types.UID][]*blockedReader
	waiting int
	blocked func(types.UID, time.Time)
}

var _ Cache = (*PodCache)(nil)

// cacheEntry is what is known of one pod. It is replaced, not modified, but for
// its observed time.
type cacheEntry struct {
	status *PodStatus
	err    error
	// stored is the stamp of the listing that status or err was asked for.
	stored time.Time
	// observed is the stamp of the newest look at this pod alone that found it
	// still so; never before stored.
	observed time.Time
}

// changedMark holds a pod's freshness back while its inspection is under way.
type changedMark struct {
	// since is the stamp of the newest listing that showed a change.
	since time.Time
	// base is the global time from before the first such listing, which counts
	// for the pod still.
	base time.Time
}

// blockedReader is a reader waiting in GetNewerThan. Whoever holds the lock and
// finds it satisfied removes it and sends, once; the channel has room for that.
type blockedReader struct {
	minTime time.Time
	ch      chan cacheAnswer
}

type cacheAnswer struct {
	status *PodStatus
	err    error
}

// NewCache returns an empty cache.
func NewCache() *PodCache {
	return &PodCache{
		entries: make(map[types.UID]*cacheEntry),
		absent:  make(map[types.UID]time.Time),
		changed: make(map[types.UID]changedMark),
		readers: make(map[types.UID][]*blockedReader),
	}
}

// Get implements Cache.
func (c *PodCache) Get(uid types.UID) (*PodStatus, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	a := c.answerLocked(uid)
	return a.status, a.err
}

// GetAll returns the status of every known pod, sorted by UID.
func (c *PodCache) GetAll() []*PodStatus {
	c.mu.RLock()
	all := make([]*PodStatus, 0, len(c.entries))
	for _, e := range c.entries {
		all = append(all, e.status)
	}
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b *PodStatus) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return all
}

// GetNewerThan implements Cache.
func (c *PodCache) GetNewerThan(uid types.UID, minTime time.Time) (*PodStatus, error) {
	return c.GetNewerThanContext(context.Background(), uid, minTime) //nolint:forbidigo // the drop-in form has no context to hand on
}

// GetNewerThanContext is GetNewerThan, given up when ctx ends: then the status is
// nil and the error wraps the cause of ctx. A status that is there already is
// returned even if ctx has ended, and one that arrives at that very moment is not
// lost.
func (c *PodCache) GetNewerThanContext(ctx context.Context, uid types.UID, minTime time.Time) (*PodStatus, error) {
	c.mu.RLock()
	fresh, answer := c.freshLocked(uid, minTime), c.answerLocked(uid)
	c.mu.RUnlock()
	if fresh {
		return answer.status, answer.err
	}

	r := &blockedReader{minTime: minTime, ch: make(chan cacheAnswer, 1)}
	c.mu.Lock()
	if c.freshLocked(uid, minTime) { // it landed between the two locks
		answer = c.answerLocked(uid)
		c.mu.Unlock()
		return answer.status, answer.err
	}
	c.readers[uid] = append(c.readers[uid], r)
	c.waiting++
	blocked := c.blocked
	c.mu.Unlock()
	if blocked != nil {
		blocked(uid, minTime)
	}

	select {
	case answer = <-r.ch:
		return answer.status, answer.err
	case <-ctx.Done():
	}
	if c.withdraw(uid, r) {
		return nil, fmt.Errorf("waiting for a status of pod %s newer than %s: %w", uid, minTime.Format(time.RFC3339Nano), context.Cause(ctx))
	}
	answer = <-r.ch // granted before it could be withdrawn
	return answer.status, answer.err
}

// BlockedReaders counts the readers that are waiting.
func (c *PodCache) BlockedReaders() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.waiting
}

// Set implements Cache.
func (c *PodCache) Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) (updated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.entries[uid]
	if old != nil && old.stored.After(timestamp) {
		return false
	}
	if status == nil {
		if status = emptyStatus(uid); err != nil && old != nil {
			status = old.status
		}
	}
	c.entries[uid] = &cacheEntry{status: status, err: err, stored: timestamp, observed: timestamp}
	delete(c.absent, uid)
	if mark, held := c.changed[uid]; held && !mark.since.After(timestamp) {
		delete(c.changed, uid)
	}
	c.wakeLocked(uid)
	return true
}

// SetObservedTime implements Cache.
func (c *PodCache) SetObservedTime(uid types.UID, timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[uid]; e != nil {
		e.observed = later(e.observed, timestamp)
	} else {
		c.absent[uid] = later(c.absent[uid], timestamp)
	}
	c.wakeLocked(uid)
}

// Delete implements Cache.
func (c *PodCache) Delete(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, uid)
	delete(c.changed, uid)
	c.wakeLocked(uid)
}

// UpdateTime implements Cache.
func (c *PodCache) UpdateTime(timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.global = later(c.global, timestamp)
	for uid, observed := range c.absent {
		if _, held := c.changed[uid]; !held && !observed.After(c.global) {
			delete(c.absent, uid)
		}
	}
	for uid := range c.readers {
		c.wakeLocked(uid)
	}
}

// MarkChanged implements Cache.
func (c *PodCache) MarkChanged(uid types.UID, timestamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mark, held := c.changed[uid]
	if !held {
		mark.base = c.global
	}
	mark.since = later(mark.since, timestamp)
	c.changed[uid] = mark
}

// NotifyBlocked implements Cache.
func (c *PodCache) NotifyBlocked(blocked func(uid types.UID, minTime time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked = blocked
}

// freshLocked is the one rule of freshness: what is known of a pod satisfies
// minTime when it was observed after minTime. Reads and wake-ups both ask it.
func (c *PodCache) freshLocked(uid types.UID, minTime time.Time) bool {
	return c.observedLocked(uid).After(minTime)
}

// observedLocked returns the stamp of the newest listing that found what is known
// of the pod to be so.
func (c *PodCache) observedLocked(uid types.UID) time.Time {
	global := c.global
	if mark, held := c.changed[uid]; held {
		global = mark.base
	}
	if e := c.entries[uid]; e != nil {
		return later(e.observed, global)
	}
	return later(c.absent[uid], global)
}

func (c *PodCache) answerLocked(uid types.UID) cacheAnswer {
	if e := c.entries[uid]; e != nil {
		return cacheAnswer{e.status, e.err}
	}
	return cacheAnswer{emptyStatus(uid), nil}
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
			r.ch <- c.answerLocked(uid)
		} else {
			kept = append(kept, r)
		}
	}
	c.keepLocked(uid, readers, kept)
}

// withdraw removes a reader that gave up, and tells whether it was still there.
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
