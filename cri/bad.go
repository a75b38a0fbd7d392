package cri

import (
	"context"
	"math/bits"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// bad is a kind of bad data in the runtime's answers. badNames contains its name, which is the
// value of the label reason in the metric pleg_cri_bad_items_total.
type bad uint8

const (
	badNilItem bad = iota
	badNoID
	badDuplicateID
	badOtherID
	badNoPodUID
	badNoMetadata
	badState
	badHash
	badRestartCount
	badIP
	badUTF8
	badExit
	badInfo
	badCount
)

var badNames = [badCount]string{
	badNilItem:      "nil_item",
	badNoID:         "item_without_id",
	badDuplicateID:  "duplicate_id",
	badOtherID:      "wrong_id",
	badNoPodUID:     "without_pod_uid_label",
	badNoMetadata:   "without_metadata",
	badState:        "unknown_state",
	badHash:         "unreadable_hash",
	badRestartCount: "unreadable_restart_count",
	badIP:           "unreadable_ip",
	badUTF8:         "invalid_utf8",
	badExit:         "unreadable_exit",
	badInfo:         "unreadable_info",
}

// badHandling describes, for the log, how each kind of bad data is handled.
var badHandling = [badCount]string{
	badNilItem:      "the item is skipped",
	badNoID:         "the item is skipped",
	badDuplicateID:  "the second item is skipped",
	badOtherID:      "the call fails",
	badNoPodUID:     "the item is skipped, it belongs to no pod",
	badNoMetadata:   "the item is kept, its labels suffice",
	badState:        "the state is read as unknown",
	badHash:         "the hash is read as 0",
	badRestartCount: "the restart count is read as 0",
	badIP:           "the pod gets no addresses",
	badUTF8:         "what is not UTF-8 is read as U+FFFD",
	badExit:         "the exit is not reported, a list shows it",
	badInfo:         "the status gets no info",
}

// badSet is a set of kinds of bad data.
type badSet uint16

func (s badSet) with(b bad) badSet { return s | 1<<b }

func (s badSet) without(b bad) badSet { return s &^ (1 << b) }

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

// object is the container or sandbox in which bad data was found. Any field except kind may be
// empty.
type object struct {
	kind         kind
	id           string
	podUID       types.UID
	podName      string
	podNamespace string
}

// keysAndValues returns the object as key-value pairs for a log, with the kubelet's keys.
func (o object) keysAndValues() []any {
	key := "containerID"
	if o.kind == sandboxes {
		key = "podSandboxID"
	}
	return []any{"pod", klog.KRef(cutText(o.podNamespace), cutText(o.podName)),
		"podUID", cutText(string(o.podUID)), key, cutText(o.id)}
}

// badReporter remembers which kinds of bad data have been logged. The first object of a kind is
// logged at the default verbosity, later objects at verbosity 4.
type badReporter struct {
	logged [badCount]atomic.Bool
}

// reportBad logs each kind of bad data in the set, with the object.
func (r *Runtime) reportBad(ctx context.Context, s badSet, of object) {
	s.each(func(b bad) {
		logger := r.log(ctx)
		if r.reported.logged[b].Swap(true) {
			logger = logger.V(4)
		}
		if logger.Enabled() {
			logger.Info("Bad data from the runtime",
				append([]any{"reason", badNames[b], "handling", badHandling[b]},
					of.keysAndValues()...)...)
		}
	})
}

// countBad adds the counts of a tally to the metric.
func (r *Runtime) countBad(t *badTally) {
	for b, n := range t {
		if n > 0 {
			r.metrics.perBad[b].Add(float64(n))
		}
	}
}
