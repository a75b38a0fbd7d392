package plegz

import (
	"bufio"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// head is the part of an answer before the lists of pods, events and samples.
type head struct {
	Time           time.Time       `json:"time"`
	Node           string          `json:"node,omitempty"`
	Version        string          `json:"version,omitempty"`
	StartedAt      time.Time       `json:"startedAt"`
	Links          []string        `json:"links,omitempty"`
	Level          Level           `json:"level,omitempty"`
	Sentence       string          `json:"sentence,omitempty"`
	Notes          []string        `json:"notes,omitempty"`
	Health         json.RawMessage `json:"health,omitempty"`
	AwaySince      time.Time       `json:"awaySince,omitzero"`
	Witnesses      []exitWitness   `json:"witnesses,omitempty"`
	Conditions     []PastCondition `json:"conditions,omitempty"`
	RecordingSince time.Time       `json:"recordingSince"`
	Position       string          `json:"position"`
	Full           bool            `json:"full"`
	GoneThrough    uint64          `json:"goneThrough"`
}

// answer contains the whole state, or only the changes since a position. Answers share their pods,
// events and samples, so these must not be modified.
type answer struct {
	head
	pods      [][]byte // each element is the JSON of one pod
	events    []*event
	samples   []*sample
	condition condition
}

// answer returns the changes since a position. It returns the whole state if the position is empty,
// unknown, of another history, or too old. news is closed at the next change.
func (r *recorder) answer(position string) (a answer, news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beginLocked()
	h := r.history
	since, resumed := r.resumeLocked(position)
	a.head = head{
		Time: r.clock.Now().UTC(), Node: r.node, Version: r.version, StartedAt: r.started, Links: r.links,
		RecordingSince: h.began,
		Position:       r.positionLocked(), Full: !resumed, GoneThrough: h.goneThrough,
	}
	a.condition = h.condition
	if h.conditionAt > since {
		c := h.condition
		a.Level, a.Sentence, a.Notes, a.Health = c.Level, c.Sentence, c.Notes, c.encoded
		a.AwaySince, a.Witnesses = shownTime(c.away), h.witnesses
	}
	if h.pastAt > since {
		a.Conditions = h.conditions
	}
	a.pods, a.events, a.samples = h.since(since)
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return a, r.news
}

// resumeLocked returns the change number in a position. It refuses the position if the history has
// forgotten a removal that came after the position. Otherwise the client would never learn of that
// removal.
func (r *recorder) resumeLocked(position string) (number uint64, resumed bool) {
	epoch, text, _ := strings.Cut(position, ".")
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil || epoch != r.epoch || number > r.history.number || number < r.history.goneThrough {
		return 0, false
	}
	return number, true
}

// writeJSON writes the answer as JSON. The parts are encoded already, so they are not copied for
// each client. A write error is kept in w until Flush.
func (a *answer) writeJSON(w *bufio.Writer) {
	head := encoded(a.head)
	_, _ = w.Write(head[:len(head)-1])
	writeList(w, "pods", a.pods, func(p []byte) []byte { return p })
	writeList(w, "events", a.events, func(e *event) []byte { return e.encoded })
	writeList(w, "samples", a.samples, func(s *sample) []byte { return s.encoded })
	_ = w.WriteByte('}')
}

func writeList[T any](w *bufio.Writer, name string, list []T, encoded func(T) []byte) {
	_, _ = w.WriteString(`,"` + name + `":[`)
	for i, v := range list {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		_, _ = w.Write(encoded(v))
	}
	_ = w.WriteByte(']')
}
