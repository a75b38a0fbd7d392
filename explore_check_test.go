package pleg

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// looks contains, for each pod, the state that check compares before and after a step.
type looks [exploredPods]struct {
	present  bool
	shown    levels
	observed time.Time
	stamp    uint64
	failed   bool // the cache returns an error
}

func (w *world) look() (ls looks) {
	for p := range w.scope.pods {
		l := &ls[p]
		l.observed = w.pods.observedLocked(podUID(p))
		_, err := w.pods.Get(podUID(p))
		l.failed = err != nil
		if rec := w.r.records.byUID[podUID(p)]; rec != nil {
			l.present = rec.pod != nil
			l.shown = levelsOf(rec.listed).shown()
			l.stamp = rec.observedAt().Number
		}
	}
	return ls
}

// drain reads the events of every subscriber. It checks that they advance one level at a time,
// never beyond the true level, and that the cache is at least as new as the event.
func (w *world) drain() {
	w.settled = [exploredPods]bool{}
	for _, f := range w.follow {
		for len(f.events) > 0 {
			e := <-f.events
			if w.quiet {
				w.breaks("an event comes of a step that has nothing to do")
			}
			p := podIndex(e.ID)
			if e.Type == PodSync {
				w.syncs[p], w.settled[p] = false, true
				continue
			}
			w.settled[p] = w.settled[p] || e.Type == ContainerRemoved
			c := e.Data.(string)[1] - '0'
			sent := &f.sent[p][c]
			was := *sent
			switch e.Type {
			case ContainerStarted:
				*sent = levelRunning
			case ContainerDied:
				*sent = levelExited
			case ContainerRemoved:
				*sent = levelRemoved
			}
			switch {
			case *sent <= was || *sent == levelRemoved && was != levelExited:
				w.breaks("rule 1: %s of %s comes after %s", e.Type, e.Data, levelNames[was])
			case *sent > w.truth[p][c]:
				w.breaks("rule 1: %s of %s, which is %s", e.Type, e.Data, levelNames[w.truth[p][c]])
			}
			if rec := w.r.records.byUID[e.ID]; rec != nil && rec.published != nil &&
				w.pods.observedLocked(e.ID).Before(e.ListedAt) {
				w.breaks("rule 3: %s of %s is of a list that the cache is older than", e.Type, e.Data)
			}
		}
	}
}

// check checks the rules that must hold after every step.
func (w *world) check(before looks, returned []*exploredCaller) {
	now := w.look()
	full := w.find(schedule.ListAll, 0)
	for p := range w.scope.pods {
		w.checkPod(p)
		if rec := w.r.records.byUID[podUID(p)]; rec != nil {
			if e := w.pods.entries[podUID(p)]; w.r.isHeld(rec) != (e != nil && e.held) {
				w.breaks("rule 7: %s is held: %v", rec.UID, !w.r.isHeld(rec))
			}
			for c := range w.knownEnd[p] {
				id := containerOf(p, c).ID
				gone := find(rec.pod.containers(), id) == nil && find(rec.published.containers(), id) == nil
				if s := rec.statuses[id]; gone || !hasExited(s) {
					continue
				} else if w.knownEnd[p][c] = w.knownEnd[p][c] || !s.EndUnknown; w.knownEnd[p][c] && s.EndUnknown {
					w.breaks("rule 20: how %s ended was known", s.ID.ID)
				}
			}
			if rec.pod == nil && (full == nil || full.call.TimedOut) && !rec.isOpen() && !w.r.isHeld(rec) {
				w.breaks("rule 9: %s is absent and remembered", rec.UID)
			}
		}
		b, n := before[p], now[p]
		if b.present && n.present && (n.observed.Before(b.observed) || n.stamp < b.stamp) {
			w.breaks("rule 7: what is known of %s becomes older", podUID(p))
		}
		if n.shown != b.shown {
			w.checkRecord(p, n.shown)
		}
		w.checkReader(p)
		if b.failed && !n.failed && !w.settled[p] { // the pod has recovered, or a pod with the same UID has replaced it
			w.syncs[p] = true
		}
		if !n.present {
			w.syncs[p] = false
		}
	}
	for _, a := range w.answered {
		if a.kind == schedule.Inspect && a.ok && !a.dead && now[a.pod].present {
			w.checkProgress(a)
		}
	}
	for _, c := range returned {
		w.checkRelist(c)
	}
}

// checkReader checks the answer to a blocked reader.
func (w *world) checkReader(p int) {
	r := &w.readers[p]
	if r.blockedReader == nil || len(r.ch) == 0 {
		return
	}
	answer := <-r.ch
	shown := shownBy(answer.status)
	from, reached := w.trueAt(r.minTime.Add(1))
	switch {
	case !reached:
		w.breaks("rule 6: a reader gets an answer before its time has come")
	case answer.err == nil && answer.status.Name != lies && !could(shown, from[p], w.truth[p]):
		w.breaks("rule 6: a reader gets %v of %s, which was %v then", shown, podUID(p), from[p])
	}
	r.blockedReader = nil
}

// checkPod checks that the cached state of the pod was true at some moment. That moment must not be
// before the time and the stamp of the cached state, or before the last published state.
func (w *world) checkPod(p int) {
	uid := podUID(p)
	status, err := w.pods.Get(uid)
	if err != nil || status.Name == lies {
		return
	}
	shown := shownBy(status)
	for c := range shown {
		ended := &w.ended[p][c]
		if *ended && shown[c] == levelRunning {
			w.breaks("rule 20: the cache shows %s running, which it has shown exited", containerOf(p, c).ID)
		}
		*ended = *ended || shown[c] == levelExited
	}
	observed := w.pods.observedLocked(uid)
	if !observed.IsZero() {
		if from, ok := w.trueAt(observed); !ok {
			w.breaks("rule 6: the cache is from the future")
		} else if !could(shown, from[p], w.truth[p]) {
			w.breaks("rule 6: the cache shows %v of %s, true since its time is %v to %v",
				shown, uid, from[p], w.truth[p])
		}
	}
	rec := w.r.records.byUID[uid]
	at := w.r.records.full
	if rec != nil {
		at = rec.observedAt()
	}
	if at.Number > 0 && !could(shown, w.stamped[at.Number][p], w.truth[p]) {
		w.breaks("rule 6: the cache shows %v of %s, true since stamp %d is %v to %v",
			shown, uid, at.Number, w.stamped[at.Number][p], w.truth[p])
	}
	if announced := w.published(p); !could(shown, announced, w.truth[p]) {
		w.breaks("rule 3: the cache shows %v of %s, which was published as %v", shown, uid, announced)
	}
}

// published returns the levels of the pod that was published last.
func (w *world) published(p int) levels {
	if rec := w.r.records.byUID[podUID(p)]; rec != nil && rec.published != nil {
		return levelsOf(rec.published)
	}
	return w.gone[p]
}

// checkRecord checks that a list has returned the levels in a changed record, and that the list did
// not read older levels than the previous list.
func (w *world) checkRecord(p int, shown levels) {
	var read []levels
	for _, a := range w.answered {
		if a.kind != schedule.Inspect && (a.kind == schedule.ListAll || a.pod == p) && a.ok && !a.dead &&
			a.read[p].shown() == shown {
			read = append(read, a.read[p])
		}
	}
	if len(read) == 0 {
		w.breaks("rule 15: the record of %s becomes %v, and no list says so", podUID(p), shown)
		return
	}
	forward := slices.DeleteFunc(read, func(l levels) bool {
		for c := range l {
			if l[c] < w.seen[p][c] {
				return true
			}
		}
		return false
	})
	if len(forward) == 0 {
		w.breaks("rule 5: the record of %s goes back to %v, it was read from %v", podUID(p), shown, w.seen[p])
		return
	}
	w.seen[p] = forward[0]
	if shown == (levels{}) {
		w.gone[p] = forward[0]
	}
}

// checkProgress checks that all levels for which an inspection was made are published when the
// inspection has returned.
func (w *world) checkProgress(a answered) {
	of, published := levelsOf(a.of), w.published(a.pod)
	for c := range of {
		if published[c] < of[c] && published[c].shown() != of[c].shown() {
			w.breaks("rule 3: %s was inspected as %v and only %v is published", podUID(a.pod), of, published)
		}
	}
}

// checkRelist checks that when a call of Relist returns, the cache and the events are at least as
// new as the call.
func (w *world) checkRelist(c *exploredCaller) {
	full := w.find(schedule.ListAll, 0)
	if w.fullOK <= c.called {
		if w.fullBad <= c.called && (full == nil || !full.call.TimedOut) {
			w.breaks("rule Relist: it returns before a list has come back")
		}
		return
	}
	for p := range w.scope.pods {
		uid := podUID(p)
		if w.stuck(p) {
			continue
		}
		status, err := w.pods.Get(uid)
		// If a newer pod list has shown the pod, the Relist does not repeat the failed inspection.
		rec := w.r.records.byUID[uid]
		if err != nil && !c.inspected[p] && rec != nil && rec.at.Number <= c.list {
			w.breaks("Relist returns with an error of %s from before", uid)
		}
		if err == nil && status.Name != lies && !could(shownBy(status), c.at[p], w.truth[p]) {
			w.breaks("Relist returns and the cache shows %v of %s, which was %v before", shownBy(status), uid, c.at[p])
		}
		if sent := w.follow[0].sent[p].shown(); !could(sent, c.at[p], w.truth[p]) {
			w.breaks("Relist returns and the events show %v of %s, which was %v before", sent, uid, c.at[p])
		}
	}
}

// stuck reports whether Relist may ignore a pod: its inspection is slow, or no inspection is needed
// and its pod list is slow or has failed.
func (w *world) stuck(p int) bool {
	rec := w.r.records.byUID[podUID(p)]
	switch {
	case rec == nil || rec.Inspection == nil && rec.inspect:
		return false
	case rec.Inspection != nil:
		return rec.Inspection.Slow
	default:
		failed := !rec.due[listFailed].IsZero()
		return rec.request.newest > 0 && (failed || rec.List != nil && rec.List.Slow)
	}
}

// hintOpen reports whether a hint of the pod, or its follow-up, is still unanswered.
func (w *world) hintOpen(p int) bool {
	_, all := w.in.hints[""]
	if _, hinted := w.in.hints[podUID(p)]; hinted || all {
		return true
	}
	rec := w.r.records.byUID[podUID(p)]
	return rec != nil && (rec.request.hinted || !rec.due[followUp].IsZero())
}

// rest brings the world to rest: the truth no longer changes, every call returns, and there are no
// more faults. If stale is true, calls read as early as possible, else as late as possible. Without
// periodic full lists, hinted changes must be found and callers must return. With periodic full
// lists, every change must be found.
func (w *world) rest(stale, periodic bool) {
	w.left = budget{}
	if w.active() && len(w.in.results) == 0 && (w.wake.IsZero() || w.wake.After(w.clock)) {
		w.quietSteps()
	}
	switch {
	case !w.running:
		w.apply(action{kind: actStart})
		periodic = true
	case !periodic && w.getter:
		off := false
		w.in.periodic = &off
		w.run()
	default:
		w.run()
		periodic = true
	}
	limit := w.periods + 4
	for p := range w.scope.pods {
		if rec := w.r.records.byUID[podUID(p)]; rec != nil {
			limit += 2 << rec.attempts
		}
	}
	for n := 0; w.broken == ""; n++ {
		if n == 400 {
			w.breaks("rest: there is no end of calls")
		}
		if len(w.flights) > 0 {
			a := w.completion(w.flights[0], stale)
			w.apply(a)
			if w.trace != nil {
				w.trace(a)
			}
			continue
		}
		unrest := w.unrest()
		if periodic && (unrest == "" || w.periods > limit) || w.wake.IsZero() {
			w.checkRest(periodic, unrest)
			return
		}
		w.quietSteps()
		w.clock = w.wake
		w.noteClock()
		w.run()
		if w.trace != nil {
			w.trace(action{kind: actTickWake})
		}
	}
}

// quietSteps makes steps without work: all inputs are handled, and the wake-up time has not come.
// It checks that the reconciler then begins nothing.
func (w *world) quietSteps() {
	w.quiet = true
	defer func() { w.quiet = false }()
	for range 2 {
		wake := w.wake
		w.step()
		if w.wake.Before(wake) {
			w.breaks("the time to wake up comes nearer in a step that has nothing to do, from %v to %v", wake, w.wake)
		}
		if ahead := w.wake.Sub(w.clock); ahead > 1 {
			w.clock = w.clock.Add(ahead / 2)
			w.noteClock()
		}
	}
	w.step()
}

func (w *world) checkRest(periodic bool, unrest string) {
	if periodic {
		if unrest != "" {
			w.breaks("rest: never reached, %s", unrest)
		}
		return
	}
	if !w.getter {
		return
	}
	for p := range w.scope.pods {
		if u := w.unrestOf(p, true); w.hinted[p] && u != "" {
			w.breaks("rest without a period: a hinted change is not found: %s", u)
		}
		r := w.readers[p]
		if r.blockedReader != nil && !r.later {
			w.breaks("rest without a period: a reader of %s is blocked", podUID(p))
		}
		if rec := w.r.records.byUID[podUID(p)]; rec != nil && rec.request.newest > 0 {
			w.breaks("rest without a period: a request of %s stays open", podUID(p))
		}
	}
	for _, c := range w.callers {
		if !c.returned {
			w.breaks("rest without a period: Relist does not return")
		}
	}
}

// unrest returns which condition of the final state is not reached; "" if all are.
func (w *world) unrest() string {
	for p := range w.scope.pods {
		if u := w.unrestOf(p, false); u != "" {
			return u
		}
	}
	for _, c := range w.callers {
		if !c.returned {
			return "Relist has not returned"
		}
	}
	r, s := w.r, reflect.ValueOf(w.r.sched).Elem()
	for _, o := range [...]struct {
		is   bool
		what string
	}{
		{len(r.health(r.sched.Now).FailingPods) > 0, "a pod is failing"},
		{len(r.relists.waiting)+len(r.relists.attached)+len(r.relists.incomplete) > 0, "a relist is open"},
		{len(r.records.byUID) != r.records.pods, "an absent pod is remembered"},
		{s.FieldByName("listSlots").Int() != schedule.PodListsAtOnce, "a list slot is lost"},
		{s.FieldByName("inspections").Int() != 0 || s.FieldByName("slow").Int() != 0, "a worker is lost"},
		{s.FieldByName("alarms").Len() > 0, "an alarm is left"},
		{s.FieldByName("stuck").Int() != 0, "a pod hangs"},
		{r.all.newest > 0, "a request for all is open"},
		{len(w.pods.GetAll()) != r.records.pods, "the cache has statuses of absent pods"},
	} {
		if o.is {
			return o.what
		}
	}
	return ""
}

// unrestOf returns which condition of the final state a pod has not reached. If hinted is true, it
// ignores blocked readers and pods that are held because a full list was dropped.
func (w *world) unrestOf(p int, hinted bool) string {
	uid := podUID(p)
	status, err := w.pods.Get(uid)
	rec := w.r.records.byUID[uid]
	want := w.truth[p].shown()
	switch {
	case err != nil:
		return fmt.Sprintf("the cache has an error of %s", uid)
	// Without another periodic full list, a pod stays held if the last full list was dropped for it.
	case rec != nil && (rec.stale || !hinted && w.r.isHeld(rec)),
		rec != nil && (rec.failures > 0 || rec.isOpen() || rec.inspect || rec.sync):
		return fmt.Sprintf("%s is held, failed or open", uid)
	case shownBy(status) != want:
		return fmt.Sprintf("the cache shows %v of %s, which is %v", shownBy(status), uid, want)
	case rec == nil && want != (levels{}), rec != nil && levelsOf(rec.pod).shown() != want:
		return fmt.Sprintf("the record of %s is not %v", uid, want)
	case w.readers[p].blockedReader != nil && !hinted:
		return fmt.Sprintf("a reader of %s is blocked", uid)
	case w.syncs[p]:
		return fmt.Sprintf("no PodSync of %s has come", uid)
	}
	for _, f := range w.follow {
		if f.sent[p].shown() != want {
			return fmt.Sprintf("the events show %v of %s, which is %v", f.sent[p], uid, want)
		}
	}
	return ""
}

// String returns the world in one line.
func (w *world) String() string {
	var b strings.Builder
	for p := range w.scope.pods {
		uid := podUID(p)
		status, err := w.pods.Get(uid)
		fmt.Fprintf(&b, "| %s truth %v", uid, w.truth[p])
		if rec := w.r.records.byUID[uid]; rec != nil {
			fmt.Fprintf(&b, " record %v@%d observed %d", levelsOf(rec.listed).shown(), rec.at.Number, rec.observedAt().Number)
			for _, o := range [...]struct {
				is   bool
				name string
			}{
				{rec.stale, "stale"}, {rec.failures > 0, "failed"}, {w.r.records.full.After(rec.at), "behind"},
				{rec.inspecting != nil && rec.inspecting.change != rec.change, "superseded"},
				{rec.inspect, "inspect"}, {rec.awaitsExits(), "awaits exits"},
			} {
				if o.is {
					b.WriteString(" " + o.name)
				}
			}
			if rec.request.newest > 0 {
				fmt.Fprintf(&b, " want>=%d", rec.request.newest)
			}
		}
		fmt.Fprintf(&b, " cache %v", shownBy(status))
		if err != nil {
			b.WriteString("+err")
		}
		fmt.Fprintf(&b, " sent %v ", w.follow[0].sent[p])
	}
	b.WriteString("| in flight")
	for _, f := range w.flights {
		b.WriteString(" " + callName(f.call))
		switch {
		case f.call.TimedOut:
			b.WriteString("(dead)")
		case f.call.Slow:
			b.WriteString("(slow)")
		}
	}
	return b.String()
}
