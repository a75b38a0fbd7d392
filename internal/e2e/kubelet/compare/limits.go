package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// limit is a promise about a kubelet on the library beside another: quantile q of a kind is
// at most factor times the other's.
type limit struct {
	what         kind
	ours, theirs string
	q, factor    float64
}

var limits = []limit{
	{crashed, "ours", "stock", 0.5, 0.2},
	{crashed, "ours", "stock, EventedPLEG", 0.5, 0.6},
	{crashed, hintsOnly, "stock, EventedPLEG", 0.5, 1.1},
	{crashed, hintsOnly, "stock, EventedPLEG", 0.9, 1.1},
	// Not above stock, as far as a minute of CPU time can tell: two under one kubelet differ
	// by that much.
	{idleKind(100, bothPrograms), "ours", "stock", 0.5, 1.05},
}

// releasedWithin is the longest that a pod that hung may take for its own successor: the longest
// that the library waits between two inspections.
const releasedWithin = 10 * time.Second

// check returns what a kubelet on the library has missed, as far as it was measured. Promises
// beside other kubelets hold on a machine that does nothing else; handledWithin is the longest
// that a crash may take while another pod hangs.
func (r *results) check(handledWithin time.Duration) error {
	var errs []error
	for _, v := range variants {
		if v.program != "kubelet" {
			continue
		}
		if s := r.get(v.name, crashedBesideHung).samples; len(s) > 0 && slices.Max(s) > handledWithin {
			errs = append(errs, fmt.Errorf("%s: %s: one took %s, more than %s", v.name, crashedBesideHung,
				show(slices.Max(s)), show(handledWithin)))
		}
		if s := r.get(v.name, releasedSuccessor).samples; len(s) > 0 && slices.Max(s) > releasedWithin {
			errs = append(errs, fmt.Errorf("%s: %s: one took %s, more than %s", v.name, releasedSuccessor,
				show(slices.Max(s)), show(releasedWithin)))
		}
		for _, k := range []kind{agreed, untouched, alone, initFailed} {
			if c := r.get(v.name, k).count; c.hits < c.all {
				errs = append(errs, fmt.Errorf("%s: %s: %d of %d", v.name, k, c.hits, c.all))
			}
		}
	}
	for _, l := range limits {
		ours, theirs := r.get(l.ours, l.what).samples, r.get(l.theirs, l.what).samples
		if len(ours) == 0 || len(theirs) == 0 {
			continue
		}
		got, most := ours.Quantile(l.q), time.Duration(l.factor*float64(theirs.Quantile(l.q)))
		if got > most {
			errs = append(errs, fmt.Errorf("%s: %s: p%.0f is %s, more than %s, which is %g times that of %s", l.ours, l.what,
				100*l.q, show(got), show(most), l.factor, l.theirs))
		}
	}
	return errors.Join(errs...)
}
