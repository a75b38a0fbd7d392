// Package backoff says how long something that failed waits before it is tried again.
package backoff

import (
	"strings"
	"sync"
	"time"
)

// Table has one back-off per key: the first wait, then twice as long each time, up to the longest; from the beginning
// again after twice the longest without a failure. Its methods are safe for concurrent use.
type Table struct {
	first, longest time.Duration // set once by New

	mu      sync.Mutex
	entries map[string]entry // guarded by mu
}

type entry struct {
	wait time.Duration
	set  time.Time // when Next was called
}

// New returns an empty table.
func New(first, longest time.Duration) *Table {
	return &Table{first: first, longest: longest, entries: map[string]entry{}}
}

// Wait returns the present wait of a key, which counts from a failure at the time failed, and when it is over; zero
// if nothing is to be waited for.
func (t *Table) Wait(key string, failed time.Time) (wait time.Duration, over time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[key]
	if !ok || t.forgiven(e, failed) {
		return 0, time.Time{}
	}
	if over = failed.Add(e.wait); !time.Now().Before(over) {
		return 0, time.Time{}
	}
	return e.wait, over
}

// Next begins a new try after a failure at the time failed: the next wait is longer.
func (t *Table) Next(key string, failed time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[key]
	if !ok || t.forgiven(e, failed) {
		e.wait = t.first
	} else {
		e.wait = min(2*e.wait, t.longest)
	}
	e.set = time.Now()
	t.entries[key] = e
}

// forgiven reports whether a try lasted so long that its failure counts as a first one.
func (t *Table) forgiven(e entry, failed time.Time) bool {
	return failed.Sub(e.set) > 2*t.longest
}

// Forget drops the keys that begin with a prefix.
func (t *Table) Forget(prefix string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.entries {
		if strings.HasPrefix(key, prefix) {
			delete(t.entries, key)
		}
	}
}
