package plegz

import (
	"strconv"
	"strings"
)

// answer is what is shown: everything, or what has changed since a position.
type answer struct {
	head
	pods      [][]byte // each a pod as JSON
	events    []event
	samples   []sample
	condition condition
}

// answer returns what has changed since a position, everything if the position is empty,
// not known, or of another history. With wait, which is closed at the next change.
func (r *recorder) answer(position string) (a answer, news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beginLocked()
	h := r.history
	since, resumed := r.resumeLocked(position)
	a.head = head{
		Time: r.clock.Now().UTC(), Node: r.nodeName, RecordingSince: h.began,
		Position: r.epoch + "." + strconv.FormatUint(h.number, 10), Full: !resumed, GoneThrough: h.goneThrough,
	}
	a.condition = h.condition
	if h.conditionAt > since {
		c := h.condition
		a.Level, a.Sentence, a.Notes, a.Health = c.level, c.sentence, c.notes, c.encoded
	}
	a.pods, a.events, a.samples = h.since(since)
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return a, r.news
}

// resumeLocked returns the number of the change that a position stands for.
func (r *recorder) resumeLocked(position string) (number uint64, resumed bool) {
	epoch, text, _ := strings.Cut(position, ".")
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil || epoch != r.epoch || number > r.history.number {
		return 0, false
	}
	return number, true
}

// json returns the answer as JSON. The pods are JSON already, and are not read again.
func (a *answer) json() []byte {
	b := encoded(a.head)
	b = append(b[:len(b)-1], `,"pods":[`...)
	for i, p := range a.pods {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, p...)
	}
	b = append(b, `],"events":`...)
	b = append(b, encoded(orEmpty(a.events))...)
	b = append(b, `,"samples":`...)
	b = append(b, encoded(orEmpty(a.samples))...)
	return append(b, '}')
}

// orEmpty has an empty list shown as one.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
