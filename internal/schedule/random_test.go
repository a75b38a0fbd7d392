package schedule_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// Whatever is wanted and however calls return: a pod has one call of a kind, slots are neither
// exceeded nor lost, there is nothing to do before Wake, and in the end nothing is left.
func TestRandom(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := newScript(t, func(cfg *schedule.Config) {
			cfg.Timeout = []time.Duration{period / 3, 10 * period}[random.IntN(2)]
			cfg.ListsPods = random.IntN(4) > 0
		})
		t.Logf("seed %d", seed)
		for range 300 {
			s.randomInput(random)
			s.randomStep(random)
			if wake := s.Wake(); random.IntN(4) == 0 && wake.After(s.Now) {
				s.Now = wake.Add(-1)
				if did := s.randomStep(random); did != nil {
					t.Fatalf("it does %v before it is to be woken", did)
				}
				s.Now = wake.Add(time.Duration(random.IntN(3)) * period / 2)
			}
		}
		s.end()
	}
}

func (s *script) randomInput(random *rand.Rand) {
	of := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	p := string(rune('a' + random.IntN(20)))
	input := of("request "+p, "request a-d", "request a-t", "inspect "+p, "inspect "+p, "inspect a-d", "leave "+p,
		"gone "+p, "wake "+p+" "+since(s.Now), "start", "start", "stop", "relist", "all hint", "all")
	if len(s.flying) > 0 && random.IntN(2) == 0 {
		which := of(slices.Sorted(maps.Keys(s.flying))...)
		if input = of("ok ", "fail ") + which; s.flying[which].Dead {
			input = of("ok ", "hang ") + which
		}
	}
	s.input(input)
}

// randomStep takes a step and compares what the schedule counts with the calls and the pods.
func (s *script) randomStep(random *rand.Rand) (did []string) {
	did = s.expire()
	for s.TakeCanary() {
		did = append(did, "canary")
		s.podInput("inspect", s.pod(string(rune('a'+random.IntN(20)))))
		if random.IntN(3) == 0 {
			s.EndRound()
			break
		}
	}
	did = append(did, s.begin()...)
	want := schedule.Counts{ListSlots: schedule.PodListsAtOnce}
	count := func(n *int, is bool, by int) {
		if is {
			*n += by
		}
	}
	one := make(map[string]bool)
	for _, c := range s.flying {
		one[fmt.Sprint(c.Kind, c.UID)] = true
		count(&want.ListSlots, c.Kind == schedule.ListPod && !c.Slow, -1)
		count(&want.Inspections, c.Kind == schedule.Inspect, 1)
		count(&want.Slow, c.Kind == schedule.Inspect && c.Slow, 1)
	}
	f := s.FullList
	for _, p := range s.pods {
		left := f != nil && !f.Slow && p.want.List <= f.Stamp.Number
		count(&want.ToList, s.cfg.ListsPods && p.want.List > 0 && p.List == nil && !left, 1)
		count(&want.ToInspect, p.want.Inspect && p.Inspection == nil, 1)
		late := p.List != nil && !p.List.Dead || p.Inspection != nil && !p.Inspection.Dead
		count(&want.Alarms, late || !p.want.Wake.IsZero(), 1)
		count(&want.Hung, !p.HungSince.IsZero(), 1)
	}
	if got := s.Counts(); got != want || len(one) != len(s.flying) {
		s.t.Fatalf("the schedule counts %+v, want %+v, for %v", got, want, s.flying)
	}
	free := s.cfg.Workers - (want.Inspections - want.Slow) - max(0, want.Slow-schedule.MaxSlow)
	if want.ListSlots < 0 || free < 0 || want.ToList > 0 && want.ListSlots > 0 || want.ToInspect > 0 && free > 0 {
		s.t.Fatalf("slots are exceeded or lost: %+v", want)
	}
	if wake := s.Wake(); !wake.IsZero() && wake.Before(s.Now) {
		s.t.Fatalf("wake %s is past %s", since(wake), since(s.Now))
	}
	return did
}
