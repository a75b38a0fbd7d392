package cri

import (
	"time"

	"github.com/kubepleg/pleg"
)

// exitSettleTime is how long after it was first seen exited a container is still asked
// about. A runtime may learn the reason after the exit: containerd's TaskOOM event may
// follow its TaskExit event, and the reason is "Error" in between (containerd#12260,
// containerd#12372).
const exitSettleTime = 10 * time.Second

// exit is what is held of a listed container that has exited. Guarded by held.mu.
type exit struct {
	seen   time.Time    // when a status first showed that it has exited
	asked  time.Time    // when status was asked for
	status *pleg.Status // nil until it has settled
}

// exitedStatus returns the settled status of an exited container, nil if there is
// none. A status from before a change of the runtime's name does not count.
func (h *held) exitedStatus(id, runtimeName string) *pleg.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	it := h.items[containers][id]
	if it == nil || it.exit == nil || it.exit.status == nil || it.exit.status.ID.Type != runtimeName {
		return nil
	}
	return it.exit.status
}

// forgetExit notes that a list has shown the container not exited: Docker can start it
// again, and its next exit is another one.
func (h *held) forgetExit(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if it := h.items[containers][id]; it != nil {
		it.exit = nil
	}
}

// observeExited records the status of an exited container. asked is when the runtime
// was asked, now is when the status is recorded. The status has settled, and is held,
// if it was asked for at least exitSettleTime after the container was first seen
// exited. If inspections run concurrently, the time of the question decides, not the
// time of the answer.
//
// Only containers that the last full list shows are recorded. The list so bounds what
// is held, even while full lists fail; other containers are asked about each time.
func (h *held) observeExited(id string, status *pleg.Status, asked, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it := h.items[containers][id]
	if it == nil {
		return
	}
	// If the clock was set back, the time starts again; otherwise the container would
	// settle later by as much as the clock was set back.
	if it.exit == nil || now.Before(it.exit.seen) {
		it.exit = &exit{seen: now}
		return
	}
	if asked.Sub(it.exit.seen) >= exitSettleTime && !asked.Before(it.exit.asked) {
		it.exit.asked, it.exit.status = asked, status
	}
}

// ending is the end of a container, as it was seen first.
type ending struct {
	code            int
	reason, message string
	at              time.Time // zero if unknown
}

// What containerd's status has of a container that ended while containerd was away.
const (
	unknownCode   = 255
	unknownReason = "Unknown"
)

// keepExit keeps a reported exit of a container, unless its end is known already.
func (h *held) keepExit(e pleg.ContainerExit) {
	h.keep(e.ContainerID, func(k *kept) {
		if k.ended == nil {
			k.ended = &ending{code: e.ExitCode, reason: exitReason(e.ExitCode), at: e.FinishedAt}
		}
	})
}

// exitReason is the runtimes' reason of an exit that they know no other reason of.
func exitReason(code int) string {
	if code == 0 {
		return "Completed"
	}
	return "Error"
}

// correctExit has the status of an exited container show its end as it was seen. The status of a
// runtime that saw the end is kept instead: it has the reason.
func (h *held) correctExit(s *pleg.Status) {
	seen := h.keptOf(s.ID.ID).ended
	switch {
	case seen != nil && s.ExitCode == unknownCode && (s.Reason == unknownReason || seen.code != unknownCode):
		s.ExitCode, s.Reason, s.Message = seen.code, seen.reason, seen.message
		if !seen.at.IsZero() {
			s.FinishedAt = seen.at
		}
	case s.ExitCode == unknownCode && s.Reason == unknownReason:
		s.EndUnknown = true
	case s.Reason != unknownReason && !s.FinishedAt.IsZero():
		h.mu.Lock()
		defer h.mu.Unlock()
		if it := h.items[containers][s.ID.ID]; it != nil {
			it.kept.ended = &ending{code: s.ExitCode, reason: s.Reason, message: s.Message, at: s.FinishedAt}
		}
	}
}
