package schedule_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		s.input("stop", nil)
		for s.requested = ""; len(s.flying) > 0 || s.relist; {
			s.input("ok", []string{"*"})
			s.randomStep(random)
		}
		for uid := range s.pods {
			s.input("wake", []string{string(uid), "-"})
			s.input("gone", []string{string(uid)})
			s.relist = s.relist || s.pods[uid].want.List > 0
		}
		s.randomStep(random)
		s.input("ok", []string{"*"})
		s.idle()
	}
}

func (s *script) randomInput(random *rand.Rand) {
	of := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	p := string(rune('a' + random.IntN(20)))
	switch random.IntN(8) {
	case 0, 1:
		s.input(of("request", "inspect", "inspect", "leave", "gone"), []string{p})
	case 2:
		s.input("wake", []string{p, s.Now.Sub(epoch).String()})
	case 3:
		s.input(of("start", "start", "stop", "relist", "all"), []string{of("", "hint")}[:1])
	case 4:
		s.input("request", []string{of("a-d", "a-t")})
	default:
		if len(s.flying) > 0 {
			which := of(slices.Sorted(maps.Keys(s.flying))...)
			how := of("ok", "fail", "stopped")
			if s.flying[which].Dead {
				how = of("ok", "hang")
			}
			s.input(how, []string{which})
		}
	}
}

// randomStep takes a step and compares what the schedule counts with the calls and the pods.
func (s *script) randomStep(random *rand.Rand) (did []string) {
	did = s.expire()
	for s.TakeCanary() {
		did = append(did, "canary")
		if random.IntN(3) == 0 {
			s.EndRound()
			break
		}
		s.input("inspect", []string{string(rune('a' + random.IntN(20)))})
	}
	did = append(did, s.begin()...)
	want := schedule.Counts{ListSlots: schedule.PodListsAtOnce}
	one := make(map[string]bool)
	for _, c := range s.flying {
		kind := fmt.Sprint(c.Kind, c.UID)
		if one[kind] {
			s.t.Fatalf("two calls %s", kind)
		}
		one[kind] = true
		switch {
		case c.Kind == schedule.ListPod && !c.Slow:
			want.ListSlots--
		case c.Kind == schedule.Inspect:
			want.Inspections++
			if c.Slow {
				want.Slow++
			}
		}
	}
	f := s.FullList
	for _, p := range s.pods {
		for count, is := range map[*int]bool{
			&want.ToList: s.cfg.ListsPods && p.want.List > 0 && p.List == nil &&
				(f == nil || f.Slow || p.want.List > f.Stamp.Number),
			&want.ToInspect: p.want.Inspect && p.Inspection == nil,
			&want.Alarms: !p.want.Wake.IsZero() || p.List != nil && !p.List.Dead ||
				p.Inspection != nil && !p.Inspection.Dead,
			&want.Hung: !p.HungSince.IsZero(),
		} {
			if is {
				*count++
			}
		}
	}
	if diff := cmp.Diff(want, s.Counts()); diff != "" {
		s.t.Fatalf("what the schedule counts (-want +got):\n%s", diff)
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
