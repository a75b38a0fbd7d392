package e2e_test

import (
	"fmt"
	"sync"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// life is one container or sandbox that the test made. Each time is taken before the call to the
// runtime, so an event with an earlier time is wrong.
type life struct {
	id   string
	what string

	created time.Time // when the test asked the runtime to create it
	started time.Time // when the test asked the runtime to start it; zero if never
	mortal  time.Time // earliest possible time of its death; zero while nothing can end it
	removed time.Time // when the test asked the runtime to remove it; zero if not yet
	code    int       // the expected exit code; -1 if unknown
	failed  bool      // true if its start failed; then every outcome is correct
	crashes int64     // value of book.crashes at its creation; replaced at its start
	crashed bool      // true if the runtime ended while it existed
	// forgotten is another exit code that is correct if crashed is true; 0 for none.
	forgotten int
	closed    bool // true if it was removed before the last close of the book
}

// book records what a test did to containers. The library's reports are compared with it.
type book struct {
	runtime testnode.Runtime
	crashes func() int64 // returns how often the runtime has ended

	mu    sync.Mutex
	lives map[string]*life
}

func newBook(r testnode.Runtime, crashes func() int64) *book {
	return &book{runtime: r, crashes: crashes, lives: make(map[string]*life)}
}

// open adds a container or sandbox. The argument created is the time when the test asked the
// runtime to create it.
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

// close drops the entries of containers and sandboxes that were removed before the previous close. An
// event of a container may still arrive after the first close.
func (b *book) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make(map[string]*life)
	for id, l := range b.lives {
		if !l.closed {
			kept[id] = l
		}
		l.closed = !l.removed.IsZero()
	}
	b.lives = kept
}

// mayHaveExitedWith reports whether an exit code is correct for this container.
func (l life) mayHaveExitedWith(code int) bool {
	return l.failed || l.code < 0 || code == l.code || l.crashed && l.forgotten != 0 && code == l.forgotten
}

// judge compares a subscriber's events of one ID with the book. It returns the first error, or "".
func (b *book) judge(id string, got sent) string {
	l, ok := b.get(id)
	if !ok {
		return fmt.Sprintf("%.12s: invented: the test made no such container", id)
	}
	early := func(event string, at, since time.Time) string {
		switch {
		case at.IsZero():
			return ""
		case since.IsZero():
			return fmt.Sprintf("%.12s (%s): invented: %s was reported, and never was", id, l.what, event)
		case at.Before(since):
			return fmt.Sprintf("%.12s (%s): invented: %s was reported %v before it could be", id, l.what, event, since.Sub(at))
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
		early("Started", got.started, l.started),
		early("Died", got.died, mayDie),
		early("Removed", got.removed, l.removed),
	} {
		if wrong != "" {
			return wrong
		}
	}
	if got.code != nil && !l.mayHaveExitedWith(*got.code) {
		return fmt.Sprintf("%.12s (%s): the cache said exit code %d, want %d", id, l.what, *got.code, l.code)
	}
	if got.reported != nil && !l.mayHaveExitedWith(*got.reported) {
		return fmt.Sprintf("%.12s (%s): an event said exit code %d, want %d", id, l.what, *got.reported, l.code)
	}
	return ""
}
