package cri

import (
	"time"

	"github.com/kubepleg/pleg"
)

// exitSettleTime is how long GetPodStatus still asks for a container's status after it was first
// seen exited. A runtime may learn the reason after the exit: containerd's TaskOOM event may follow
// its TaskExit event, and the reason is "Error" in between (containerd#12260, containerd#12372).
const exitSettleTime = 10 * time.Second

// exit is what is held of a container's exit. Guarded by held.mu.
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

// forgetExit forgets the exit of a container that is no longer listed as exited. Docker can start
// the container again, and its next exit is a new one.
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
// Only containers that the last full list shows are recorded. So that list bounds what is held,
// even while full lists fail. Other containers are asked about each time.
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
