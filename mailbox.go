package pleg

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// mailbox is everything that others have to say to the loop: calls that landed,
// and requests. Nothing in it ever blocks its sender, and everything in it is
// bounded: landings by the calls in flight, hints by a number, and the requests of
// callers by being sets of pods.
type mailbox struct {
	// wake has room for one token: something is in the mailbox.
	wake chan struct{}

	mu   sync.Mutex
	mail mail // guarded by mu
}

// mail is the content of a mailbox.
type mail struct {
	landings []landing
	// relists are what waits for a full relist that is yet to begin.
	relists []*barrier
	// looks are the pods to list by themselves.
	looks map[types.UID]look
	// later are the pods to list by themselves once a time has passed.
	later map[types.UID]time.Time
	// reinspect are the pods to inspect though nothing may have changed.
	reinspect map[types.UID]struct{}
	// hints are the containers that the runtime's events spoke of.
	hints map[hint]struct{}
	// stream tells of connections to the runtime's events, and of their ends.
	stream []streamNews
	// waiting says that a reader waits for a time that full relists will serve.
	waiting bool
	// lostHints says that there were more than could be kept.
	lostHints bool
}

// look asks for a listing of one pod.
type look struct {
	cause Cause
	// after is what the stamp of the listing must be later than.
	after time.Time
	// hinted says that a hint is among the causes; it may be ahead of the list.
	hinted bool
	// echo is a second look because of one hint.
	echo bool
}

// hint is a container that an event spoke of; either may be empty.
type hint struct {
	uid         types.UID
	containerID string
}

// maxHints bounds the hints that wait for the loop, in case a runtime sends
// garbage faster than the loop runs. Past it, one full relist stands for all.
const maxHints = 10000

func newMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), mail: newMail()}
}

func newMail() mail {
	return mail{
		looks:     make(map[types.UID]look),
		later:     make(map[types.UID]time.Time),
		reinspect: make(map[types.UID]struct{}),
		hints:     make(map[hint]struct{}),
	}
}

// put changes the mail and wakes the loop.
func (b *mailbox) put(change func(*mail)) {
	b.mu.Lock()
	change(&b.mail)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// land brings a call back.
func (b *mailbox) land(l landing) {
	b.put(func(m *mail) { m.landings = append(m.landings, l) })
}

// take exchanges the mail for an empty one, whose memory is used again.
func (b *mailbox) take(empty *mail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mail, *empty = *empty, b.mail
}

// reset empties the mail and keeps its memory.
func (m *mail) reset() {
	clear(m.landings)
	clear(m.relists)
	m.landings, m.relists = m.landings[:0], m.relists[:0]
	m.stream = m.stream[:0]
	m.waiting, m.lostHints = false, false
	clear(m.looks)
	clear(m.later)
	clear(m.reinspect)
	clear(m.hints)
}

// requestLook asks for a listing of the pod; one serves everybody who asked.
func (m *mail) requestLook(uid types.UID, cause Cause, after time.Time) {
	m.looks[uid] = look{cause: cause, after: later(m.looks[uid].after, after)}
}

// requestLater asks for a listing of the pod once a time has passed. Of several
// times the earliest counts: for the others the next full relist is soon enough.
func (m *mail) requestLater(uid types.UID, after time.Time) {
	if earlier, ok := m.later[uid]; ok && earlier.Before(after) {
		return
	}
	m.later[uid] = after
}

func (m *mail) addHint(h hint) {
	if len(m.hints) >= maxHints {
		m.lostHints = true
		return
	}
	m.hints[h] = struct{}{}
}
