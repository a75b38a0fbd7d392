package e2e_test

import (
	"fmt"
	"sync"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// life is one container or sandbox as the test that made it knows it. The times
// are taken before the calls, so that nothing may be told of it earlier.
type life struct {
	id   string
	what string

	created time.Time // when it was asked for
	started time.Time // when its start was asked for; zero if never
	mortal  time.Time // from when on it may die; zero while it may not
	removed time.Time // when its removal was asked for; zero if not yet
	code    int       // the exit code that it must have; -1 if not known
	failed  bool      // its start failed: whatever becomes of it is right
	crashes int64     // how often the runtime had ended when it was asked for, and when it was started
	crashed bool      // the runtime ended while it lived
	// forgotten is the exit code that it may have instead, once crashed; 0 for none.
	forgotten int
}

// book is what a test did: the measure of what the library may and must tell.
type book struct {
	runtime testnode.Runtime
	crashes func() int64 // how often the runtime has ended so far

	mu    sync.Mutex
	lives map[string]*life
}

func newBook(r testnode.Runtime, crashes func() int64) *book {
	return &book{runtime: r, crashes: crashes, lives: make(map[string]*life)}
}

// open enters a container or sandbox that was asked for at created.
func (b *book) open(id, what string, created time.Time) *life {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &life{id: id, what: what, created: created, code: -1, crashes: b.crashes(), forgotten: b.runtime.ForgottenExit}
	b.lives[id] = l
	return l
}

// note changes an entry.
func (b *book) note(l *life, change func(*life)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(l)
}

// get returns a copy of an entry.
func (b *book) get(id string) (life, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.lives[id]
	if !ok {
		return life{}, false
	}
	return *l, true
}

// close drops the entries of what has been removed.
func (b *book) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make(map[string]*life)
	for id, l := range b.lives {
		if l.removed.IsZero() {
			kept[id] = l
		}
	}
	b.lives = kept
}

// mayHaveExitedWith tells whether an exit code is right.
func (l life) mayHaveExitedWith(code int) bool {
	return l.failed || l.code < 0 || code == l.code || l.crashed && l.forgotten != 0 && code == l.forgotten
}

// judge says what is wrong with what a subscriber was told of one ID, or nothing.
func (b *book) judge(id string, told told) string {
	l, ok := b.get(id)
	if !ok {
		return fmt.Sprintf("%.12s: invented: the test made no such container", id)
	}
	early := func(event string, at, since time.Time) string {
		switch {
		case at.IsZero():
			return ""
		case since.IsZero():
			return fmt.Sprintf("%.12s (%s): invented: %s was told, and never was", id, l.what, event)
		case at.Before(since):
			return fmt.Sprintf("%.12s (%s): invented: %s was told %v before it could be", id, l.what, event, since.Sub(at))
		}
		return ""
	}
	mayDie := l.mortal
	if mayDie.IsZero() || !l.removed.IsZero() && l.removed.Before(mayDie) {
		mayDie = l.removed
	}
	if b.runtime.GivesUp && mayDie.IsZero() && l.crashes != b.crashes() {
		mayDie = l.started
	}
	for _, wrong := range []string{
		early("Started", told.started, l.started),
		early("Died", told.died, mayDie),
		early("Removed", told.removed, l.removed),
	} {
		if wrong != "" {
			return wrong
		}
	}
	if told.code != nil && !l.mayHaveExitedWith(*told.code) {
		return fmt.Sprintf("%.12s (%s): the cache said exit code %d, want %d", id, l.what, *told.code, l.code)
	}
	if told.reported != nil && !l.mayHaveExitedWith(*told.reported) {
		return fmt.Sprintf("%.12s (%s): an event said exit code %d, want %d", id, l.what, *told.reported, l.code)
	}
	return ""
}
