package cri

import (
	"time"

	"github.com/kubepleg/pleg"
)

// exitSettleTime is how long GetPodStatus asks again for the status of an exited container, after a
// status first showed the exit. A runtime may learn the reason after the exit: containerd's TaskOOM
// event may follow its TaskExit event. Between the two events, the reason is "Error"
// (containerd#12260, containerd#12372).
const exitSettleTime = 10 * time.Second

// exit stores what is known of a container's exit. Guarded by held.mu.
type exit struct {
	seen   time.Time    // when a status first showed the exit
	asked  time.Time    // when the runtime was asked for the settled status
	status *pleg.Status // nil until the status has settled
}

// exitedStatus returns the settled status of an exited container, or nil. If the runtime's name has
// changed since the status was read, it returns nil.
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
// the same container again, and its next exit has another status.
func (h *held) forgetExit(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if it := h.items[containers][id]; it != nil {
		it.exit = nil
	}
}

// observeExited records the status of an exited container. asked is when the runtime was asked for
// the status, and now is the time of recording. A status has settled if it was asked for at least
// exitSettleTime after a status first showed the exit. Only a settled status is held. If
// inspections run concurrently, the status that was asked for last is held.
//
// Only containers in the last full list are recorded. So that list bounds the number of held
// statuses, even while full lists fail. For other containers, the runtime is asked each time.
func (h *held) observeExited(id string, status *pleg.Status, asked, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it := h.items[containers][id]
	if it == nil {
		return
	}
	// If the clock was set back, the ten seconds start again. Otherwise the container would settle
	// too late: the delay would be the amount by which the clock was set back.
	if it.exit == nil || now.Before(it.exit.seen) {
		it.exit = &exit{seen: now}
		return
	}
	if asked.Sub(it.exit.seen) >= exitSettleTime && !asked.Before(it.exit.asked) {
		it.exit.asked, it.exit.status = asked, status
	}
}
