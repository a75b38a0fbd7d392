package cri

import (
	"time"

	"github.com/kubepleg/pleg"
)

// exitSettleTime is how long an exited container is asked about again, from when it
// was first seen exited. A runtime may learn how a container ended after it ended:
// containerd's event of an OOM kill may come after that of the exit, and the reason
// is "Error" until then (containerd#12260, containerd#12372).
const exitSettleTime = 10 * time.Second

// exit is what is held of a listed container that has exited. Guarded by held.mu.
type exit struct {
	seen   time.Time    // when a status first showed that it has exited
	asked  time.Time    // when status was asked for
	status *pleg.Status // nil until it has settled
}

// exitedStatus returns the status of a container that has exited, if one is held
// that names the runtime as it is named now.
func (h *held) exitedStatus(id, runtimeName string) *pleg.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	it := h.items[containers][id]
	if it == nil || it.exit == nil || it.exit.status == nil || it.exit.status.ID.Type != runtimeName {
		return nil
	}
	return it.exit.status
}

// observeExited notes the status of a container that has exited, which was asked for
// at one time and is noted at another. The status is held once it has settled: if it
// was asked for exitSettleTime after the container was first seen exited. Of
// inspections that run at once, that decides by when they asked, not by when they
// were answered.
//
// Only containers that the last full list shows are noted. So what is held is bounded
// by that list, also while full lists fail; other containers are asked about each
// time.
func (h *held) observeExited(id string, status *pleg.Status, asked, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it := h.items[containers][id]
	if it == nil {
		return
	}
	// A clock that was set back begins the time anew, rather than to add to it all
	// that it was set back by.
	if it.exit == nil || now.Before(it.exit.seen) {
		it.exit = &exit{seen: now}
		return
	}
	if asked.Sub(it.exit.seen) >= exitSettleTime && !asked.Before(it.exit.asked) {
		it.exit.asked, it.exit.status = asked, status
	}
}
