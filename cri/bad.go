package cri

import (
	"context"
	"math/bits"
	"sync/atomic"
)

// bad is a kind of bad data in the runtime's answers, and, by badNames, a value
// of the label reason of pleg_cri_bad_items_total.
type bad uint8

const (
	badNilItem bad = iota
	badNoID
	badDuplicateID
	badNoPodUID
	badNoMetadata
	badState
	badHash
	badRestartCount
	badIP
	badCount
)

var badNames = [badCount]string{
	badNilItem:      "nil_item",
	badNoID:         "item_without_id",
	badDuplicateID:  "duplicate_id",
	badNoPodUID:     "without_pod_uid_label",
	badNoMetadata:   "without_metadata",
	badState:        "unknown_state",
	badHash:         "unreadable_hash",
	badRestartCount: "unreadable_restart_count",
	badIP:           "unreadable_ip",
}

// badDone says what is done about each, for the log.
var badDone = [badCount]string{
	badNilItem:      "skipped",
	badNoID:         "skipped",
	badDuplicateID:  "the second is skipped",
	badNoPodUID:     "skipped: it belongs to no pod",
	badNoMetadata:   "kept: its labels tell what is needed",
	badState:        "read as unknown",
	badHash:         "read as 0",
	badRestartCount: "read as 0",
	badIP:           "the pod is shown without addresses",
}

// badSet is a set of kinds of bad data.
type badSet uint16

func (s badSet) with(b bad) badSet { return s | 1<<b }

// each calls f with every kind in the set.
func (s badSet) each(f func(bad)) {
	for ; s != 0; s &= s - 1 {
		f(bad(bits.TrailingZeros16(uint16(s))))
	}
}

// badTally counts bad data by kind.
type badTally [badCount]int

func (t *badTally) add(s badSet, n int) {
	s.each(func(b bad) { t[b] += n })
}

// badReporter remembers which kinds of bad data have been logged: each is said
// once aloud, with the first object that has it, and after that only to those who
// ask for verbose logs.
type badReporter struct {
	said [badCount]atomic.Bool
}

// reportBad logs that an object has the kinds of bad data in the set.
func (r *Runtime) reportBad(ctx context.Context, s badSet, kind, id string) {
	s.each(func(b bad) {
		logger := r.log(ctx)
		if r.reported.said[b].Swap(true) {
			logger = logger.V(4)
		}
		logger.Info("Bad data from the runtime", "reason", badNames[b], "kind", kind, "id", id, "done", badDone[b])
	})
}

// countBad counts bad data.
func (r *Runtime) countBad(t *badTally) {
	for b, n := range t {
		if n > 0 {
			r.metrics.perBad[b].Add(float64(n))
		}
	}
}
