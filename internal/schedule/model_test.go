package schedule_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/kubepleg/pleg/internal/schedule"
)

// world is a schedule beside what must be so of it: the requests that are open, by the
// number of the newest stamp when they were made, and the calls in flight.
type world struct {
	*schedule.Scheduler
	t        *rapid.T
	cfg      schedule.Config
	clock    time.Time
	flying   map[*schedule.Call]schedule.Call // as they began
	open     map[types.UID]requests
	inspects map[types.UID]bool // wanted, and not begun
	// waits has the pods with a request that waits for a time. When it comes, a request
	// that is open becomes a newer one, and nobody is told.
	waits map[types.UID]bool
}

// requests are the oldest and the newest open request of a pod.
type requests struct{ oldest, newest uint64 }

func newWorld(t *rapid.T) *world {
	cfg := schedule.Config{
		Period:    period,
		Timeout:   rapid.SampledFrom([]time.Duration{300 * ms, 10 * period}).Draw(t, "timeout"),
		Threshold: threshold, Workers: workers,
		ListsPods: rapid.Bool().Draw(t, "lists pods"),
	}
	w := &world{
		Scheduler: schedule.New(cfg), t: t, cfg: cfg, clock: epoch,
		flying: make(map[*schedule.Call]schedule.Call),
		open:   make(map[types.UID]requests), inspects: make(map[types.UID]bool),
		waits: make(map[types.UID]bool),
	}
	w.Advance(epoch)
	return w
}

// step does what there is to do, and reports whether there was anything.
func (w *world) step() (acted bool) {
	before := w.Requested()
	for _, late := range w.Expire() {
		acted = true
		switch {
		case !late.NowDead:
		case late.Kind == schedule.ListAll:
			w.FullListFailed()
		case late.Kind == schedule.ListPod:
			w.PodListFailed(late.UID)
		default:
			w.retry(late.UID)
		}
	}
	for _, uid := range w.Requested() {
		if !slices.Contains(before, uid) { // it had waited for a time
			acted = true
			w.requested(uid)
		}
	}
	for w.TakeCanary() {
		acted = true
		w.EndRound()
	}
	newest := w.Last().Number
	for _, c := range w.Begin(false) {
		acted = true
		w.begins(c, &newest)
	}
	if next := w.Wake(); !next.IsZero() && !next.After(w.clock) {
		w.t.Fatalf("there is more to do at once: wake %v, now %v", next, w.clock)
	}
	return acted
}

func (w *world) begins(c *schedule.Call, newest *uint64) {
	for _, other := range w.flying {
		if other.Kind == c.Kind && other.UID == c.UID {
			w.t.Fatalf("%+v begins beside %+v", c, other)
		}
	}
	if c.Kind == schedule.Inspect {
		if !w.inspects[c.UID] {
			w.t.Fatalf("%+v was not asked for", c)
		}
		delete(w.inspects, c.UID)
	} else {
		if c.Stamp.Number <= *newest {
			w.t.Fatalf("%+v begins after %d", c, *newest)
		}
		*newest = c.Stamp.Number
	}
	if _, open := w.open[c.UID]; c.Kind == schedule.ListPod && !open {
		w.t.Fatalf("%+v answers no request", c)
	}
	w.flying[c] = *c
}

// check fails where more is in flight than there are places, or other requests are open
// than those that no later list has answered.
func (w *world) check() {
	places := make(map[schedule.Kind]int)
	for c, began := range w.flying {
		began.Slow, began.Dead = c.Slow, c.Dead
		if *c != began {
			w.t.Fatalf("%+v has become %+v", began, *c)
		}
		if !c.Slow || c.Kind == schedule.ListAll {
			places[c.Kind]++
		}
	}
	if places[schedule.ListAll] > 1 || places[schedule.ListPod] > schedule.PodListsAtOnce ||
		places[schedule.Inspect] > w.cfg.Workers {
		w.t.Fatalf("in flight by kind: %v", places)
	}
	for i, uid := range w.Requested() {
		if _, ok := w.open[uid]; !ok {
			w.t.Fatalf("%s is requested: %d", uid, i)
		}
	}
	if got := len(w.Requested()); got != len(w.open) {
		w.t.Fatalf("%d requests are open of %v", got, w.open)
	}
	for uid := range w.inspects {
		if !w.InspectionWanted(uid) {
			w.t.Fatalf("the inspection of %s was forgotten", uid)
		}
	}
}

// request has a pod requested.
func (w *world) request(uid types.UID, hinted bool) {
	if hinted {
		w.Hint(uid)
	} else {
		w.Request(uid, "demand")
	}
	w.requested(uid)
	if !w.cfg.ListsPods {
		w.requestAll(hinted)
	}
}

// requested notes that a request of a pod is open from now on.
func (w *world) requested(uid types.UID) {
	r, open := w.open[uid]
	if r.newest = w.Last().Number; !open {
		r.oldest = r.newest
	}
	w.open[uid] = r
}

// requestAll has all pods requested.
func (w *world) requestAll(hinted bool) {
	if hinted {
		w.HintAll()
	} else {
		w.RequestAll("demand")
	}
}

// returns has a call return, with an answer or a failure.
func (w *world) returns(c *schedule.Call, fails bool) {
	delete(w.flying, c)
	if c.Kind == schedule.Inspect {
		uid := c.UID
		w.Returned(c, !c.Dead || !fails)
		if fails && !c.Dead {
			w.retry(uid)
		} else if !fails {
			w.InspectionSucceeded()
			w.InspectionAgreed(uid, true)
		}
		return
	}
	w.Returned(c, true)
	switch {
	case c.Dead:
	case fails && c.Kind == schedule.ListAll:
		w.FullListFailed()
	case fails:
		w.PodListFailed(c.UID)
	case c.Kind == schedule.ListPod:
		w.answer(c.UID, c.Stamp)
	default:
		for _, uid := range w.Requested() {
			w.answer(uid, c.Stamp)
		}
		w.FullListed(c)
	}
}

// answer has a list answer what is requested of a pod. What was requested since it began stays
// open.
func (w *world) answer(uid types.UID, stamp schedule.Stamp) {
	r, open := w.open[uid]
	want := open && stamp.Number > r.oldest
	answers := w.PodListed(uid, stamp)
	if answers && !want || want && !answers && !w.waits[uid] {
		w.t.Fatalf("list %d answers the requests for %s after %d: %v", stamp.Number, uid, r.oldest, answers)
	}
	if !answers {
		return
	}
	left := slices.Contains(w.Requested(), uid)
	if newer := stamp.Number <= r.newest; newer && !left || left && !newer && !w.waits[uid] {
		w.t.Fatalf("list %d leaves a request for %s open: %v; the newest is after %d", stamp.Number, uid, left, r.newest)
	}
	if left {
		w.open[uid] = requests{r.newest, r.newest}
	} else {
		delete(w.open, uid)
		w.waits[uid] = w.Open(uid) // there may be a follow-up
	}
}

// inOrder returns the calls in flight in an order that can be repeated.
func (w *world) inOrder() []*schedule.Call {
	var all []*schedule.Call
	for c := range w.flying {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *schedule.Call) int {
		if a.Kind != b.Kind {
			return int(a.Kind) - int(b.Kind)
		}
		if a.UID < b.UID {
			return -1
		}
		return 1
	})
	return all
}

// pass lets time pass. Before the time at which the schedule wants to be woken there is
// nothing to do, however often one looks.
func (w *world) pass(d time.Duration) {
	wake := w.Wake()
	then := w.clock.Add(d)
	if early := wake.Add(-1); wake.IsZero() || then.Before(wake) {
		early = then
		w.tell(early)
		if w.step() {
			w.t.Fatalf("there was something to do at %v; wake was %v", early, wake)
		}
	} else if early.After(w.clock) {
		w.tell(early)
		if w.step() {
			w.t.Fatalf("there was something to do at %v; wake was %v", early, wake)
		}
	}
	w.tell(then)
}

func (w *world) tell(clock time.Time) {
	w.clock = clock
	w.Advance(clock)
}

// settle has every call return with an answer as time passes, until nothing is left.
func (w *world) settle() {
	w.SetPeriodic(false)
	for range 200 {
		w.step()
		for _, c := range w.inOrder() {
			w.returns(c, false)
		}
		w.step()
		if !w.cfg.ListsPods && len(w.open) > 0 {
			w.RequestAll("demand") // as the lists of every period would
			w.step()
		}
		for i := range pods { // whose inspection has never been answered
			if uid := podAt(i); w.Open(uid) && w.Inspection(uid) == nil {
				w.inspect(uid)
			}
		}
		w.step()
		wake := w.Wake()
		if wake.IsZero() && len(w.flying) == 0 {
			break
		}
		if wake.After(w.clock) {
			w.tell(wake)
		}
	}
	for i := range pods {
		w.InspectionAgreed(podAt(i), true)
	}
	if w.OpenPods() > 0 || len(w.open) > 0 || len(w.inspects) > 0 || len(w.flying) > 0 || !w.Wake().IsZero() {
		w.t.Fatalf("%d pods are left, with requests %v, inspections %v, in flight %v, wake %v",
			w.OpenPods(), w.open, w.inspects, w.flying, w.Wake())
	}
}

func (w *world) retry(uid types.UID) {
	w.Retry(uid)
	w.waits[uid] = true
}

func (w *world) inspect(uid types.UID) {
	w.Inspect(uid)
	w.inspects[uid] = true
}

const pods = 2*schedule.PodListsAtOnce + 2 // more wait than are listed at once, while as many are

func podAt(i int) types.UID { return types.UID(fmt.Sprintf("p%02d", i)) }

// Whatever is asked for and however calls return: there are never more calls than
// places, or two of a kind for a pod; a request is answered by the lists that began
// after it and no others; before Wake there is nothing to do; and when calls return,
// everything that was asked for is done in time and nothing is left.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		pod := rapid.Custom(func(t *rapid.T) types.UID { return podAt(rapid.IntRange(0, pods-1).Draw(t, "n")) })
		soon := rapid.SampledFrom([]time.Duration{1, 50 * ms, 400 * ms, period, 3 * period, 20 * period})
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) { w.request(pod.Draw(t, "pod"), rapid.Bool().Draw(t, "hinted")) },
			"request many": func(*rapid.T) {
				for i := range pods {
					w.request(podAt(i), false)
				}
			},
			"request all": func(t *rapid.T) { w.requestAll(rapid.Bool().Draw(t, "hinted")) },
			"relist":      func(*rapid.T) { w.RequestRelist() },
			"withdraw":    func(*rapid.T) { w.WithdrawRelist() },
			"periodic":    func(t *rapid.T) { w.SetPeriodic(rapid.Bool().Draw(t, "on")) },
			"connected":   func(t *rapid.T) { w.SetConnected(rapid.Bool().Draw(t, "connected")) },
			"retry":       func(t *rapid.T) { w.retry(pod.Draw(t, "pod")) },
			"inspect":     func(t *rapid.T) { w.inspect(pod.Draw(t, "pod")) },
			"gone": func(t *rapid.T) {
				uid := pod.Draw(t, "pod")
				w.Gone(uid)
				delete(w.inspects, uid)
			},
			"no inspection": func(t *rapid.T) {
				uid := pod.Draw(t, "pod")
				w.InspectionAgreed(uid, false)
				delete(w.inspects, uid)
			},
			"return": func(t *rapid.T) {
				if len(w.flying) == 0 {
					t.Skip("nothing is in flight")
				}
				w.returns(rapid.SampledFrom(w.inOrder()).Draw(t, "call"), rapid.Bool().Draw(t, "fails"))
			},
			"step": func(*rapid.T) { w.step() },
			"pass": func(t *rapid.T) { w.step(); w.pass(soon.Draw(t, "time")) },
			"pass to wake": func(*rapid.T) {
				w.step()
				if wake := w.Wake(); !wake.IsZero() {
					w.pass(wake.Sub(w.clock))
				}
			},
			"": func(*rapid.T) { w.check() },
		})
		w.settle()
	})
}
