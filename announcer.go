package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// announcer hands the changes of the records to the subscribers, after the cache has their
// statuses.
type announcer struct {
	updates *broadcaster
	cache   ROCache // for the log: how containers finished
	logger  klog.Logger
	window  window
	now     time.Time                // by the clock, at the present step
	version uint64                   // of the newest update
	owed    map[types.UID]*podRecord // the pods with a PodSync that is due
	first   stamp                    // of the first full list that succeeded
}

// owe notes that a PodSync is due with the result of the next inspection of a pod.
func (a *announcer) owe(rec *podRecord) {
	rec.syncsOwed++
	a.owed[rec.uid] = rec
}

// pay notes that the PodSyncs up to a number are delivered, and reports whether one of
// them was still due.
func (a *announcer) pay(rec *podRecord, number uint64) bool {
	if rec.syncsPaid >= number {
		return false
	}
	rec.syncsPaid = number
	if rec.syncsPaid == rec.syncsOwed {
		delete(a.owed, rec.uid)
	}
	return true
}

// announce hands the update of a pod to the window or the subscribers: the cache holds the
// status for it. of is the pod as it was listed; in has the change, the cause and the
// PodSyncs that the update is for.
func (a *announcer) announce(rec *podRecord, of *Pod, in inspection) {
	a.version++
	u := &update{
		uid: rec.uid, pod: of, version: a.version, follows: rec.version,
		sync: a.pay(rec, in.syncs) || in.recovered, listedAt: in.listed.Time, cause: in.cause,
		initial: a.initial(rec, of, in.listed),
	}
	switch newest := in.change == rec.change.number; {
	case newest && !rec.change.pending: // it has been announced
	case newest && rec.change.whole:
		u.transitions = rec.change.transitions
	default:
		u.transitions = appendTransitions(nil, rec.announced, of)
	}
	if in.change == rec.change.number {
		rec.change.pending = false
	}
	appears := (rec.announced == nil) != (of == nil)
	if len(u.transitions) == 0 && !u.sync && !appears {
		a.window.skip(rec)
		return
	}
	rec.announced, rec.version = of, u.version
	if of == nil {
		rec.version = 0
	}
	a.log(u)
	if !a.window.add(rec, u) {
		a.publish(u)
	}
}

// initial returns what existed of a pod, as it was listed, when the subscriptions began that
// there were at the first full list.
func (a *announcer) initial(rec *podRecord, of *Pod, listed stamp) *Pod {
	initial := rec.initial
	rec.initial = nil
	if a.first.Number == 0 || !listed.After(a.first) {
		return of
	}
	return initial
}

// firstList notes that the first full list is in the records. The pods that are not announced
// as it shows them may change before they are.
func (a *announcer) firstList(at stamp, records *podRecords) {
	a.first = at
	for _, rec := range records.byUID {
		if rec.change.pending {
			rec.initial = rec.pod
		}
	}
}

// closeWindow publishes what the reorder window holds back.
func (a *announcer) closeWindow() { a.window.close(a.publish) }

func (a *announcer) publish(u *update) { a.updates.Publish(u, a.now) }

// log logs every transition, and the exit code of containers that finished.
func (a *announcer) log(u *update) {
	v := a.logger.V(2)
	if !v.Enabled() {
		return
	}
	status, _ := a.cache.Get(u.uid)
	for _, t := range u.transitions {
		id := t.container.ID.ID
		a.logger.V(4).Info("Transition", "podUID", u.uid, "containerID", id, "event", t.kind)
		if t.kind != ContainerDied || t.sandbox {
			continue
		}
		for _, s := range status.ContainerStatuses {
			if s.ID.ID == id && s.State == ContainerStateExited {
				v.Info("Container finished", "podUID", u.uid, "containerID", id, "exitCode", s.ExitCode, "reason", s.Reason)
			}
		}
	}
}
