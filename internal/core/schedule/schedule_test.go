package schedule_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// Full lists begin at these times.
func TestFullLists(t *testing.T) {
	runTables(t, map[string]string{
		"every period from when they are switched on": `
			0s    start            | F1:period | 1s
			300ms ok F1            |           | 1s
			1s                     | F2:period | 2s
			1s    ok F2; stop      |           | -
			1.2s  start            | F3:period | 2.2s`,
		"a period after a list that took longer": `
			0s    start            | F1:period | 1s
			1.5s                   | F1-slow   | 1.5s
			1.5s  ok F1            |           | 2.5s
			2.5s                   | F2:period | 5.5s
			4s    fail F2          |           | 5s`,
		"one that is asked for: as long after a list as it took, a period at most": `
			0s    all hint         | F1:hint   | 1s
			400ms ok F1            |           | 800ms
			800ms                  | F2:hint   | 1.8s
			800ms fail F2          |           | 1.8s
			1.8s                   | F3:hint   | 2.8s
			5s                     | F3-slow   | 5s
			5s    ok F3            |           | 6s`,
		"for Relist at once, or when the list in flight has returned": `
			0s    relist           | F1        | 1s
			0s    relist           |           | 1s
			500ms ok F1            | F2        | 1.5s
			500ms fail F2          |           | -
			500ms relist; all hint | F3        | 1.5s`,
		"for more pods than are listed at once; later requests get lists of their own": `
			0s    request a-i      | F1        | 1s
			0s    request d        | G2d       | 1s
			0s    ok F1 G2d        |           | -
			0s    request a-h      | G3a G4b G5c G6d G7e G8f G9g G10h | 1s`,
		"for many pods as any that is asked for": `
			0s    relist           | F1        | 1s
			300ms ok F1; request a-t | G2a G3b G4c G5d G6e G7f G8g G9h | 600ms
			600ms                  | F10       | 1.3s`,
		"any answers the pods that wait": `
			0s    request a; relist; moving? a | true F1 | 1s
			0s    moving? a; request b-k | true G2b G3c G4d G5e G6f G7g G8h G9i | 1s
			0s    relist; ok F1    | F10       | 1s`,
		"fails: the pods are listed one by one until a list succeeds": `
			0s    request a-j      | F1        | 1s
			0s    fail F1          | G2a G3b G4c G5d G6e G7f G8g G9h | 1s
			5s    ok G*; request a-j | G10i G11j G12a G13b G14c G15d G16e G17f | 6s
			5s    ok G*; relist    | F18       | 6s
			5s    ok F18; request a-i | F19    | 6s`,
		"is slow: the pods are listed one by one": `
			0s    request a-j      | F1        | 1s
			1s                     | F1-slow G2a G3b G4c G5d G6e G7f G8g G9h | 1s
			1s    ok G*; request a | G10i G11j G12a | 1s`,
		"is dead: no other begins until it returns": `
			0s    start            | F1:period | 1s
			2m    request a-i; relist | F1-slow F1-dead G2a G3b G4c G5d G6e G7f G8g G9h | 2m0s
			2m    canary?; ok G* | true G10i | 2m1s
			200s  stop; ok G*      |           | 3m20s
			200s  hang F1          | F11       | 3m21s`,
		"hangs when it has run for twice as long as the newest that succeeded, or ten seconds": `
			0s    relist           | F1        | 1s
			4s    ok F1; relist    | F2        | 12s
			11s   hangs?           | -         | 12s
			12s                    | F2-slow   | 12s
			12s   hangs?; canary?  | 4s true   | 14s
			14s   ok F2; hangs?; relist | - F3 | 24s
			24s                    | F3-slow   | 24s
			24s   hangs?; canary?  | 14s true  | 26s`,
	})
}

// If the runtime cannot list one pod, full lists answer all requests.
func TestRuntimeListsNoPods(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ListsPods = false })
	s.run(`
		0s start                   | F1:period | 1s
		0s ok F1; request a-j; moving? a | false | 1s
		1s                         | F2:period | 2s`)
	s.end()
}

// After a full list has timed out, full lists stay stuck until the runtime answers a later list, or
// until full lists are switched off.
func TestHangLasts(t *testing.T) {
	const dead = "242s | F2-slow F2-dead | 4m2s\n"
	for _, end := range []string{
		"122s ok F2; hangs?                        | -    | 2m3s",
		"122s fail F2; hangs?                      | -    | 2m3s",
		"122s stop; hangs?; ok F2; hangs?          | 0s - | -",
		dead + "242s hang F2; hangs?               | 0s   | 4m2s",
		dead + "242s ok F2; hangs?                 | -    | 4m3s",
		dead + "242s stop; hang F2; hangs?         | -    | -",
		dead + "242s hang F2; hangs?; stop; hangs? | 0s - | -",
	} {
		t.Run(end, func(t *testing.T) {
			newScript(t).run(`
				0s   start           | F1:period       | 1s
				2m                   | F1-slow F1-dead | 2m0s
				2m   hang F1; hangs? | 0s              | 2m0s
				122s hangs?          | 0s F2:period    | 2m2s
				` + end)
		})
	}
}

// If the clock is set back, the times of stamps do not decrease. Two stamps may have the same time;
// their numbers then order them.
func TestStamps(t *testing.T) {
	s := newScript(t)
	s.run(`0s request a b | G1a G2b | 1s`)
	if a, b := s.flying["G1a"].Stamp, s.flying["G2b"].Stamp; a.Time != b.Time || a.After(b) || !b.After(a) || a.After(a) {
		t.Errorf("stamps %v and %v", a, b)
	}
	s.run(`-1h relist | F3 | -59m59s`)
	if want := (schedule.Stamp{Time: epoch, Number: 3}); s.Last != want || s.FullList.Stamp != want {
		t.Errorf("got stamp %v", s.Last)
	}
}

// Pod lists and inspections of single pods begin and end at these times.
func TestPods(t *testing.T) {
	runTables(t, map[string]string{
		"slots, in the order of the requests; one call of a kind for a pod": `
			0s    request a-h; inspect c a b c | G1a G2b G3c G4d G5e G6f G7g G8h Ic Ia | 1s
			0s    request i e; inspect c       |          | 1s
			0s    ok Ic G5e                    | G9i Ib   | 1s
			0s    ok Ia G1a                    | G10e Ic  | 1s`,
		"an inspection that is slow frees its worker once": `
			0s    inspect a b c                | Ia Ib    | 1s
			500ms ok Ib; inspect d e           | Ic       | 1s
			1s    inspect a; stuck? a           | - Ia-slow Id | 1.5s
			1s    moving? a e; stuck? a; ok Ic  | false true 0s Ie | 2s
			1s    ok Id Ie                     |          | 31s
			2m    canary?; inspect f g h       | true Ia-dead If Ig | 2m1s
			2m    hang Ia; stuck? a             | 0s       | 2m1s
			2m    ok If Ig                     | Ih Ia    | 2m1s
			2m    ok Ia Ih; stuck? a            | -        | -`,
		"a pod list that is slow frees its slot once": `
			0s    request a-h                  | G1a G2b G3c G4d G5e G6f G7g G8h | 1s
			1s    request a i; ok G2* G3* G4* G5* G6* G7* G8* | G1a-slow G9i | 2s
			1s    moving? a; ok G9*            | false    | 2m0s
			2m    request b-i                  | G1a-dead G10b G11c G12d G13e G14f G15g G16h G17i | 2m1s
			2m    request j; ok G1a            |          | 2m1s
			2m    ok G10b G11c                 | G18j G19a | 2m1s`,
		"late calls: the full list, and the others by UID": `
			0s    relist                       | F1       | 1s
			0s    request c a; inspect b a     | G2c G3a Ib Ia | 1s
			1h    | F1-slow F1-dead G3a-slow G3a-dead Ia-slow Ia-dead Ib-slow Ib-dead G2c-slow G2c-dead | 1h0m0s`,
		"a pod wakes at its time, or when its call is late": `
			0s    wake a 9s; wake b 3s; wake c 5s; wake d 2s; wake e 5s |  | 2s
			0s    wake b -; wake d 5s; wake e 4s |        | 4s
			4s                                 | e        | 5s
			4s    request c; wake d -; wake b 5s; wake a 5s | G1c | 5s
			5s                                 | a b c G1c-slow | 2m4s
			5s    wake c 7s                    |          | 7s`,
		"a pod moves while its call is not slow, or is to begin": `
			0s    moving? a; request a; moving? a | false true G1a | 1s
			1s    moving? a                    | true G1a-slow | 2m0s
			1s    moving? a; relist            | false F2 | 2s
			1s    ok F2; moving? a; inspect a; moving? a | false true Ia | 2s
			1s    request a; moving? a         | true     | 2s
			2s                                 | Ia-slow  | 32s
			2s    moving? a; ok Ia; moving? a  | false false | 2m0s
			2s    ok G1a; moving? a            | true G3a | 3s
			2s    ok G3a; wake a 3s; moving? a | false    | 3s`,
		"a hang lasts across calls, until one is answered or the pod is gone": `
			0s    inspect a                    | Ia       | 1s
			2m                                 | Ia-slow Ia-dead | 2m30s
			2m    hang Ia; stuck? a; inspect a  | 0s Ia    | 2m1s
			121s                               | Ia-slow  | 2m30s
			121s  stuck? a; ok Ia; stuck? a; inspect a | 0s - Ia | 2m2s
			122s                               | Ia-slow  | 2m32s
			122s  gone a; stuck? a              | -        | 4m1s
			123s  inspect a; stuck? a           | 2m1s     | 2m33s
			241s  leave a                      | Ia-dead  | 2m33s
			241s  hang Ia; stuck? a; gone a; gone a; stuck? a | 2m1s - | -`,
		"canaries while pods hang, every sixth of the threshold": `
			0s    canary?; inspect a b         | false Ia Ib | 1s
			1s                                 | Ia-slow Ib-slow | 31s
			31s   canary?; canary?             | true false | 1m1s
			51s   ok Ia                        |          | 1m1s
			61s   canary?; ok Ib               | true     | -
			10m   canary?                      | false    | -`,
	})
}

// If the deadline is shorter than a period, a call becomes slow and times out at the same time. A
// canary is due at most once per period.
func TestShortTimes(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.Timeout, cfg.Threshold, cfg.Workers = period/2, period, 1 })
	s.run(`
		0s    start; inspect a             | F1:period Ia | 500ms
		500ms                              | F1-slow F1-dead Ia-slow Ia-dead | 500ms
		1s    hangs?; canary?              | 0s true      | 3s
		1s    stop; hang F1; canary?       | false        | 2s
		2s    canary?                      | true         | 3s`)
	s.end()
}

// While full lists are stuck, pods are inspected in rounds. A round uses half of the workers. Pods
// that need an inspection come first. A round begins two periods after the last inspection of the
// previous round began.
func TestRounds(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.Workers = 4 })
	s.run(`
		0s   start; canary?                | false F1:period | 1s
		1s                                 | F1-slow         | 1s
		1s   canary?; round a-e; canary?   | true false Ia Ib | 2s
		1s   inspect f g e h; leave h      | If Ig           | 2s
		1s   ok If Ig Ia                   | Ie              | 2s
		1s   ok Ib                         | Ic              | 2s
		1.5s gone d; ok Ie Ic; canary?     | false           | 3s
		3s   canary?; round a b; ok F1     | true            | 4s
		4s   stop; inspect c               | Ic              | 5s
		5s                                 | Ic-slow         | 35s
		36s  canary?; canary?; ok Ic       | true false      | -`)
	s.end()
}

// Slow inspections beyond MaxSlow keep their workers. If half of MaxSlow are slow, no inspection of
// a round begins.
func TestManySlowInspections(t *testing.T) {
	const workers = schedule.MaxSlow / 2
	s := newScript(t, func(cfg *schedule.Config) { cfg.Workers = workers })
	for n := range 3*workers + 2 {
		s.podInput("inspect", s.pod(fmt.Sprintf("%03d", n)))
	}
	s.relist = true
	for i, inFlight := range []int{workers, 2 * workers, 3 * workers, 3 * workers, 3 * workers} {
		s.Now = epoch.Add(time.Duration(i) * period)
		s.expire()
		s.begin()
		moving := s.Moving(&s.pod("097").Entry)
		if got := s.Counts().Inspections; got != inFlight || moving != (i < 3) {
			t.Errorf("after %d periods %d are in flight; the others move: %v", i, got, moving)
		}
	}
	s.run(`
		4s ok I000 I001                                       | I096 I097 | 4s
		4s canary?; round x y; ok I09* I00* I01* I02* I03* I04* I05[0-7] | true | 2m0s
		4s ok I058                                            | Ix Iy     | 5s
		4s ok *                                               |           | -`)
	s.end()
}

// For random inputs, each pod has at most one call of each kind. The number of calls stays within
// the limits, and no slot is lost. Nothing is due before Wake, and nothing is left in the end.
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
		if input = of("ok ", "fail ") + which; s.flying[which].TimedOut {
			input = of("ok ", "hang ") + which
		}
	}
	s.input(input)
}

// randomStep takes a step, and compares the counters of the schedule with the calls and the pods.
func (s *script) randomStep(random *rand.Rand) (did []string) {
	did = s.expire()
	if s.TakeCanary() {
		did = append(did, "canary")
		for range random.IntN(9) {
			if p := s.pod(string(rune('a' + random.IntN(20)))); p.Inspection == nil {
				s.AddToRound(&p.Entry)
			}
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
		late := p.List != nil && !p.List.TimedOut || p.Inspection != nil && !p.Inspection.TimedOut
		count(&want.Alarms, late || !p.want.Wake.IsZero(), 1)
		count(&want.Stuck, !p.StuckSince.IsZero(), 1)
	}
	got := s.Counts()
	want.Round = got.Round // checked below
	if got != want || len(one) != len(s.flying) {
		s.t.Fatalf("the schedule counts %+v, want %+v, for %v", got, want, s.flying)
	}
	free := s.cfg.Workers - (want.Inspections - want.Slow) - max(0, want.Slow-schedule.MaxSlow)
	half := want.Inspections-want.Slow < max(1, s.cfg.Workers/2) && want.Slow < schedule.MaxSlow/2
	lost := want.ToList > 0 && want.ListSlots > 0 || want.ToInspect > 0 && free > 0 || got.Round > 0 && half
	if wake := s.Wake(); want.ListSlots < 0 || free < 0 || lost || !wake.IsZero() && wake.Before(s.Now) {
		s.t.Fatalf("slots are exceeded or lost, or wake %s is past %s: %+v", since(wake), since(s.Now), want)
	}
	return did
}
