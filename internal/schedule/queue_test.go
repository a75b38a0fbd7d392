package schedule_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// Alarms ring in the order of their times whatever the order in which they were set,
// moved and taken back.
func TestAlarmsRingInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := newScript(t)
	at := make(map[types.UID]time.Time)
	attempts := make(map[types.UID]int)
	for now := range 500 {
		s.Advance(epoch.Add(time.Duration(now) * ms))
		uid := numbered(random.IntN(100))
		if random.IntN(4) == 0 {
			s.InspectionAgreed(uid, true)
			delete(at, uid)
			delete(attempts, uid)
			continue
		}
		s.Retry(uid)
		at[uid] = s.Now().Add(min(period<<attempts[uid], schedule.MaxRetryWait))
		attempts[uid]++
	}
	for len(at) > 0 {
		var due []types.UID
		var next time.Time
		for uid, t := range at {
			if next.IsZero() || t.Before(next) {
				due, next = nil, t
			}
			if t.Equal(next) {
				due = append(due, uid)
			}
		}
		slices.Sort(due)
		s.wakes(next.Sub(epoch))
		s.Advance(next)
		s.Expire()
		s.same("requested", s.Requested(), due)
		for _, uid := range due {
			s.PodListed(uid, schedule.Stamp{Number: 1})
			s.InspectionAgreed(uid, true)
			delete(at, uid)
		}
	}
	s.wakes(-1)
	s.forgotten()
}

// A long queue keeps its order while pods leave it from the front and from within, and
// others join it.
func TestLongQueue(t *testing.T) {
	const n = 400
	s := newScript(t)
	var waiting []types.UID
	join := func(i int) {
		s.Inspect(numbered(i))
		waiting = append(waiting, numbered(i))
	}
	for i := range n {
		join(i)
	}
	s.step(0, "Ip000", "Ip001")
	waiting = waiting[2:]
	for i := range n - 2 {
		if i%5 == 0 && len(waiting) > 3 { // one leaves from within
			s.InspectionAgreed(waiting[2], false)
			waiting = append(waiting[:2:2], waiting[3:]...)
		}
		if i%2 == 0 {
			join(n + i)
		}
		if len(waiting) == 0 {
			break
		}
		for in := range s.flying {
			s.inspected(in)
			break
		}
		s.does("I" + string(waiting[0]))
		waiting = waiting[1:]
	}
}

// A pod that leaves a queue and comes again stands at its end.
func TestPodsThatComeAgainQueueAgain(t *testing.T) {
	s := newScript(t)
	s.inspectMany("a", "b")
	s.step(0, "Ia", "Ib") // there is no worker free
	s.inspectMany("c", "d", "e", "f")
	s.InspectionAgreed("c", false)
	s.Inspect("c")
	s.InspectionAgreed("d", false)
	s.Inspect("x")
	s.inspected("Ia", "Ib")
	s.does("Ie", "If")
	s.inspected("Ie", "If")
	s.does("Ic", "Ix")
}
