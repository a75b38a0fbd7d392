package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// suspension is one call of Suspend.
type suspension struct {
	uid     types.UID
	lapses  time.Time // in the schedule's time
	resumed bool      // or lapsed
}

// suspensions are those that have not lapsed, the oldest first: all last equally long.
type suspensions []*suspension

// add takes in a suspension that begins now.
func (all *suspensions) add(s *suspension, lapses time.Time) {
	s.lapses = lapses
	*all = append(*all, s)
}

// expired takes away the oldest suspension if it has lapsed, and returns it; nil for none.
// Those that were resumed are dropped on the way.
func (all *suspensions) expired(now time.Time) *suspension {
	for len(*all) > 0 {
		s := (*all)[0]
		if !s.resumed && now.Before(s.lapses) {
			return nil
		}
		(*all)[0] = nil
		*all = (*all)[1:]
		if !s.resumed {
			return s
		}
	}
	*all = nil // its memory may be that of many
	return nil
}

// next returns when the oldest suspension lapses; zero for never.
func (all suspensions) next() time.Time {
	for _, s := range all {
		if !s.resumed {
			return s.lapses
		}
	}
	return time.Time{}
}
