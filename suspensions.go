package pleg

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// suspension is one call of Suspend.
type suspension struct {
	uid    types.UID
	lapses time.Time // in the schedule's time
}

// suspensions are those that were neither resumed nor have lapsed, the oldest first: all
// last equally long.
type suspensions []*suspension

// add takes in a suspension that begins now.
func (all *suspensions) add(s *suspension, lapses time.Time) {
	s.lapses = lapses
	*all = append(*all, s)
}

// remove takes a suspension out, and reports whether it was there.
func (all *suspensions) remove(s *suspension) bool {
	i := slices.Index(*all, s)
	if i < 0 {
		return false
	}
	*all = slices.Delete(*all, i, i+1)
	return true
}

// lapsed returns the oldest suspension if its time is up; nil for none.
func (all suspensions) lapsed(now time.Time) *suspension {
	if len(all) == 0 || now.Before(all[0].lapses) {
		return nil
	}
	return all[0]
}

// next returns when the oldest suspension lapses; zero for never.
func (all suspensions) next() time.Time {
	if len(all) == 0 {
		return time.Time{}
	}
	return all[0].lapses
}
