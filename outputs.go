package pleg

import (
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// outputs is what the reconciler wants done after a step, in the order of the fields. A call
// to cancel may have returned.
type outputs struct {
	cancel   []cancelCall
	begin    []beginCall
	relisted []*relistCaller // their relist is complete
	// listsRecovered: a full list has succeeded after one that failed.
	listsRecovered bool
	// wake is when the next step is due; zero for never.
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
