package pleg

import (
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// outputs is what the reconciler wants done after a step, in the order of the fields. It is
// valid until the next. A call to cancel may have returned; its memory may then be that of
// one to begin.
type outputs struct {
	cancel   []cancelCall
	begin    []beginCall
	relisted []*relistCaller // their relist is complete
	// listsRecovered: a full list has succeeded after one that failed.
	listsRecovered bool
	// wake is when, by the clock, the next step is due; zero for never.
	wake time.Time
}

// beginCall is a call to make.
type beginCall struct {
	*schedule.Call
	pod *Pod // to inspect, or as it is known; nil if it is not
}

// cancelCall is a call to cancel.
type cancelCall struct {
	*schedule.Call
	cause error
}

func (o *outputs) reset() {
	clear(o.begin)
	clear(o.cancel)
	clear(o.relisted)
	o.begin, o.cancel, o.relisted, o.listsRecovered = o.begin[:0], o.cancel[:0], o.relisted[:0], false
}
