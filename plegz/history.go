package plegz

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/healthreport"
)

// history is the state of the node, present and past, as the page shows it. Each item stores the
// number of its last change. With these numbers, the method since finds newer items. history uses
// no clock and no goroutine.
type history struct {
	entries int  // maximum number of remembered events, and of remembered gone items
	labels  bool // true if labels are shown
	// pastEnds contains ends that an earlier agent knew, by container ID.
	pastEnds map[string]Event
	// pastTrouble describes the problems that an earlier agent saw last; empty for none.
	pastTrouble string

	began       time.Time
	number      uint64 // number of the newest change
	pods        map[types.UID]*record
	gone        []departed // oldest first
	gonePods    int        // number of pods in gone
	goneThrough uint64     // number of the newest forgotten item of gone
	events      []*event   // oldest first
	samples     []*sample  // oldest first
	condition   condition
	conditionAt uint64          // number of the last change of condition
	conditions  []PastCondition // oldest first
	pastAt      uint64          // number of the last change of conditions
	witnesses   []exitWitness

	observations uint64 // number of calls of observe
}

const (
	maxSamples    = 600 // ten minutes
	maxConditions = 100
	maxGonePods   = 100
)

// record is the history's entry for one pod.
type record struct {
	observed  observed
	lives     map[string]*life // the pod's containers and sandboxes by ID, including removed ones
	ended     map[string]time.Time
	stale     bool   // true if encoded is older than the last change
	forgot    bool   // true if encoded still contains forgotten containers
	listedIn  uint64 // number of the last observation that listed the pod
	removedAt time.Time
	gone      uint64

	namespace, name string
	changed         uint64
	encoded         []byte // the pod as JSON
}

// departed identifies a removed container or sandbox. If id is empty, it identifies a removed pod.
type departed struct {
	number uint64
	uid    types.UID
	id     string
}

func newHistory(o *options, began time.Time) *history {
	h := &history{
		entries: o.history, labels: o.labels, pastEnds: o.pastEnds, pastTrouble: troubleOf(o.pastConditions),
		began: began, pods: make(map[types.UID]*record),
	}
	for _, e := range o.pastEvents {
		h.addEvent(e)
	}
	for _, c := range o.pastConditions {
		h.addCondition(c)
	}
	return h
}

// addEvent adds an event. If there are too many events, it forgets the oldest.
func (h *history) addEvent(e Event) {
	h.events = append(h.events, newEvent(e, h.next()))
	h.events = h.events[max(0, len(h.events)-h.entries):]
}

// addCondition adds a condition, unless the newest condition resembles it. The cause of a problem is
// found out step by step. So the new condition replaces the newest if that is less than ten seconds old
// and not the first of its level. If there are too many conditions, addCondition forgets the oldest.
func (h *history) addCondition(c PastCondition) {
	past := h.conditions
	if n := len(past) - 1; n >= 0 && past[n].Resembles(c.Condition) {
		return
	} else if n > 0 && past[n-1].Level == past[n].Level && past[n].Level == c.Level &&
		c.Time.Sub(past[n].Time) < 10*time.Second {
		past = slices.Clone(past[:n]) // answers share the list
	}
	past = append(past, c)
	h.conditions, h.pastAt = past[max(0, len(past)-maxConditions):], h.next()
}

// next returns the number for a new change.
func (h *history) next() uint64 {
	h.number++
	return h.number
}

// record returns the record of a pod. It creates an empty record for a new pod.
func (h *history) record(uid types.UID) *record {
	r := h.pods[uid]
	if r == nil {
		r = &record{lives: make(map[string]*life), ended: make(map[string]time.Time)}
		h.pods[uid] = r
	}
	return r
}

// note adds the event v, which describes e.
func (h *history) note(e *pleg.PodLifecycleEvent, v Event) {
	r := h.record(e.ID)
	if r.observed.listed == nil {
		r.observed.listed = e.Pod
	}
	h.addEvent(v)
	if e.Container == nil {
		return
	}
	r.stale = true
	id := clip(e.Container.ID.ID)
	switch e.Type {
	case pleg.ContainerDied:
		if _, known := r.ended[id]; !known {
			r.ended[id] = e.ListedAt
		}
	case pleg.ContainerRemoved:
		l := newLife(e.Container, e.Status, r.ended[id])
		l.sandbox = e.IsSandbox()
		l.recall(h.pastEnds)
		h.depart(e.ID, r, l, e.ListedAt)
	default:
	}
}

// depart records that a container or sandbox was removed. A second call for the same ID can add the
// exit code.
func (h *history) depart(uid types.UID, r *record, l life, at time.Time) {
	delete(r.ended, l.ID)
	r.stale = true
	l.State, l.RemovedAt, l.Unconfirmed = stateRemoved, at, false
	if known := r.lives[l.ID]; known != nil && known.Gone > 0 {
		if l.ExitCode != nil || known.ExitCode == nil {
			l.Gone = known.Gone
			r.lives[l.ID] = &l
		}
		return
	}
	l.Gone = h.next()
	r.lives[l.ID] = &l
	h.remember(departed{l.Gone, uid, l.ID})
}

// shown returns the pod's containers and sandboxes in the order of the page: first the present ones
// in the order of the list, then the removed ones, newest first.
func (r *record) shown() []*life {
	return slices.SortedFunc(maps.Values(r.lives), func(a, b *life) int {
		if a.Gone == 0 || b.Gone == 0 {
			return cmp.Or(cmp.Compare(a.Gone, b.Gone), cmp.Compare(a.place, b.place))
		}
		return cmp.Compare(b.Gone, a.Gone)
	})
}

// remember adds a gone item. If there are too many gone items, it forgets the oldest.
func (h *history) remember(d departed) {
	h.gone = append(h.gone, d)
	if d.id == "" {
		h.gonePods++
	}
	for len(h.gone) > h.entries || h.gonePods > maxGonePods {
		oldest := h.gone[0]
		if oldest.id == "" {
			h.gonePods--
		}
		h.gone = h.gone[1:]
		h.goneThrough = oldest.number
		r := h.pods[oldest.uid]
		switch {
		case r == nil:
		case oldest.id == "" && r.gone == oldest.number:
			delete(h.pods, oldest.uid)
		case oldest.id != "":
			// Clients forget the item by its number, see goneThrough. So the pod gets no new number
			// of a change.
			if l := r.lives[oldest.id]; l != nil && l.Gone == oldest.number {
				delete(r.lives, oldest.id)
				r.forgot = true
			}
		}
	}
}

// observe updates the history with the pods that are listed at the time now. A known pod that is
// not in listed counts as removed.
func (h *history) observe(listed []*pleg.Pod, status func(types.UID) (*pleg.PodStatus, error),
	failing map[types.UID]pleg.FailingPod, now time.Time) {
	h.observations++
	for _, p := range listed {
		r := h.record(p.ID)
		r.listedIn = h.observations
		s, err := status(p.ID)
		o := observed{listed: p, status: s, failing: failing[p.ID]}
		if err != nil {
			o.err = err.Error()
		}
		if o == r.observed && !r.stale && r.gone == 0 {
			continue
		}
		r.observed, r.gone, r.removedAt, r.stale = o, 0, time.Time{}, true
		h.update(p.ID, r, now)
	}
	var unlisted []types.UID // pods whose removal is not yet recorded
	for uid, r := range h.pods {
		if r.listedIn != h.observations && (r.gone == 0 || r.stale) {
			unlisted = append(unlisted, uid)
		}
	}
	slices.Sort(unlisted)
	for _, uid := range unlisted {
		if r := h.pods[uid]; r != nil {
			h.leave(uid, r, now)
		}
	}
}

// leave records that a pod is no longer listed.
func (h *history) leave(uid types.UID, r *record, now time.Time) {
	r.observed.failing, r.observed.err, r.stale = pleg.FailingPod{}, "", true
	if r.gone == 0 {
		for _, l := range r.shown() {
			if l.Gone == 0 {
				h.depart(uid, r, *l, now)
			}
		}
		r.gone, r.removedAt = h.next(), now
		h.remember(departed{r.gone, uid, ""})
	}
	h.show(r)
}

// update compares a listed pod's containers and sandboxes with its record, and updates the record.
func (h *history) update(uid types.UID, r *record, now time.Time) {
	for _, c := range slices.Concat(r.observed.listed.Containers, r.observed.listed.Sandboxes) {
		// The event of the death comes only after the inspection, which may be stuck. So the time
		// of the death is recorded here.
		id := clip(c.ID.ID)
		if l := r.lives[id]; l != nil && c.State == pleg.ContainerStateExited &&
			l.State == pleg.ContainerStateRunning && r.ended[id].IsZero() {
			r.ended[id] = now
		}
	}
	listed := r.observed.lives(r.ended)
	for _, l := range listed {
		l.recall(h.pastEnds)
	}
	maps.DeleteFunc(listed, func(id string, _ *life) bool { return r.lives[id] != nil && r.lives[id].Gone > 0 })
	for _, l := range r.shown() {
		if l.Gone == 0 && listed[l.ID] == nil {
			h.depart(uid, r, *l, now)
		}
	}
	maps.Copy(r.lives, listed)
	h.show(r)
}

// show encodes a pod. If the JSON differs from before, the pod gets a new change number.
func (h *history) show(r *record) {
	r.stale = false
	before := r.encoded
	h.encode(r)
	if !bytes.Equal(before, r.encoded) {
		r.changed = h.next()
	}
}

// encode encodes a pod as JSON.
func (h *history) encode(r *record) {
	p := r.observed.view(h.labels)
	p.Gone, p.RemovedAt = r.gone, r.removedAt
	for _, l := range r.shown() {
		if l.sandbox {
			p.Sandboxes = append(p.Sandboxes, *l)
		} else {
			p.Containers = append(p.Containers, *l)
		}
	}
	p.summarize()
	r.forgot = false
	r.namespace, r.name, r.encoded = p.Namespace, p.Name, encoded(p)
}

// troubleOf describes the problems with which the conditions end; empty for none.
func troubleOf(past []PastCondition) string {
	trouble := healthreport.Trouble(past, func(c PastCondition) bool { return c.Level == LevelOK })
	if len(trouble) == 0 {
		return ""
	}
	return fmt.Sprintf("an earlier agent saw problems since %s, at last: %s",
		clockTime(trouble[0].Time), healthreport.WithoutAges(trouble[len(trouble)-1].Sentence))
}

// addPast adds a note with the result of troubleOf, if there was no successful list yet.
func (c *condition) addPast(trouble string) {
	if trouble != "" && c.report.LastRelist.IsZero() {
		c.Notes = append(slices.Clip(c.Notes), trouble)
	}
}

// describe stores the node's present condition. Before the first list, the agent does not know whether a
// problem is older than itself, so the condition also has what an earlier agent saw.
func (h *history) describe(c condition) {
	c.addPast(h.pastTrouble)
	c.encoded = encoded(&c.health)
	h.condition, h.conditionAt = c, h.next()
}

// keepCondition adds the present condition to the past conditions. In the first second, it waits for the
// first list.
func (h *history) keepCondition(now time.Time) {
	if !h.condition.report.LastRelist.IsZero() || now.Sub(h.began) >= samplePeriod {
		h.addCondition(PastCondition{now, h.condition.Condition})
	}
}

// sample adds a sample.
func (h *history) sample(s *sample) {
	s.number, s.encoded = h.next(), encoded(s)
	h.samples = append(h.samples, s)
	h.samples = h.samples[max(0, len(h.samples)-maxSamples):]
}

// since returns all changes whose number exceeds the given number. Pods are sorted by namespace and
// name, with removed pods last. Events and samples are sorted oldest first. The results are not
// modified later.
func (h *history) since(number uint64) (pods [][]byte, events []*event, samples []*sample) {
	var records []*record
	for _, r := range h.pods {
		if r.changed > number {
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b *record) int {
		return cmp.Or(cmp.Compare(min(a.gone, 1), min(b.gone, 1)), cmp.Compare(a.namespace, b.namespace),
			cmp.Compare(a.name, b.name), cmp.Compare(b.gone, a.gone), cmp.Compare(a.changed, b.changed))
	})
	for _, r := range records {
		// If the record is stale, a later call of the method show encodes the pod and gives it a
		// new number.
		if r.forgot && !r.stale {
			h.encode(r)
		}
		pods = append(pods, r.encoded)
	}
	i, _ := slices.BinarySearchFunc(h.events, number+1, func(e *event, n uint64) int { return cmp.Compare(e.Number, n) })
	j, _ := slices.BinarySearchFunc(h.samples, number+1, func(s *sample, n uint64) int { return cmp.Compare(s.number, n) })
	return pods, slices.Clone(h.events[i:]), slices.Clone(h.samples[j:])
}
