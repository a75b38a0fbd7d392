package schedule_test

import (
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/schedule"
)

// When full lists begin.
func TestFullLists(t *testing.T) {
	for name, table := range map[string]string{
		"every period from when they are switched on": `
			0s                     |           | -
			0s    start            | F1:period | 1s
			300ms ok F1            |           | 1s
			999ms                  |           | 1s
			1s                     | F2:period | 2s
			1s    ok F2; stop      |           | -
			10s   start            | F3:period | 11s
			10s   ok F3; stop      |           | -`,
		"a period after a list that took longer": `
			0s    start            | F1:period | 1s
			1.5s                   | F1-slow   | 1.5s
			1.5s  ok F1            |           | 2.5s
			2.5s                   | F2:period | 3.5s
			4s                     | F2-slow   | 5.5s
			4s    fail F2          |           | 5s
			4s    stop             |           | -`,
		"one that is asked for: as long after a list as it took, a period at most": `
			0s    all hint         | F1:hint   | 1s
			400ms ok F1            |           | 800ms
			799ms                  |           | 800ms
			800ms                  | F2:hint   | 1.8s
			800ms fail F2          |           | 1.8s
			1.8s                   | F3:hint   | 2.8s
			5s                     | F3-slow   | 5s
			5s    ok F3            |           | 6s
			5s    all              |           | -`,
		"for Relist at once, or when the list in flight has returned": `
			0s    relist           | F1        | 1s
			0s    relist           |           | 1s
			500ms ok F1            | F2        | 1.5s
			500ms fail F2          |           | -
			500ms relist; all hint | F3        | 1.5s
			500ms all; ok F3       |           | -`,
		"of the period whatever others wait for": `
			0s    start            | F1:period | 1s
			900ms ok F1; all hint  |           | 1s
			1s                     | F2:period | 2s
			1s    all; ok F2; stop |           | -`,
		"for more pods than are listed at once; later requests get lists of their own": `
			0s    request a-i      | F1        | 1s
			0s    request d        | G2d       | 1s
			0s    ok F1 G2d        |           | -
			0s    request a-h      | G3a G4b G5c G6d G7e G8f G9g G10h | 1s
			0s    ok G*            |           | -`,
		"for many pods as any that is asked for": `
			0s    relist           | F1        | 1s
			300ms ok F1; request a-t | G2a G3b G4c G5d G6e G7f G8g G9h | 600ms
			600ms                  | F10       | 1.3s
			600ms ok F10 G*        |           | -`,
		"any answers the pods that wait": `
			0s    request a; relist; moving? a | true F1 | 1s
			0s    moving? a; request b-k | true G2b G3c G4d G5e G6f G7g G8h G9i | 1s
			0s    relist; ok F1    | F10       | 1s
			0s    ok F10 G*        |           | -`,
		"fails: the pods are listed one by one until a list succeeds": `
			0s    request a-j      | F1        | 1s
			0s    fail F1          | G2a G3b G4c G5d G6e G7f G8g G9h | 1s
			0s    ok G*            | G10i G11j | 1s
			5s    ok G*; request a-j | G12a G13b G14c G15d G16e G17f G18g G19h | 6s
			5s    ok G*; relist    | F20       | 6s
			5s    ok F20; request a-i | F21    | 6s
			5s    ok F21           |           | -`,
		"is slow: the pods are listed one by one": `
			0s    request a-j      | F1        | 1s
			1s                     | F1-slow G2a G3b G4c G5d G6e G7f G8g G9h | 1s
			1s    ok G*            | G10i G11j | 1s
			1s    ok G*; request a | G12a      | 1s
			1s    ok F1 G*         |           | -`,
		"is stopped: the next is instead of many too": `
			0s    request a-j      | F1        | 1s
			0s    stopped F1       | F2        | 1s
			0s    ok F2            |           | -`,
		"is dead: no other begins until it returns": `
			0s    start            | F1:period | 1s
			2m    request a-i; relist | F1-slow F1-dead G2a G3b G4c G5d G6e G7f G8g G9h | 2m0s
			2m    canary?; ended; ok G* | true G10i | 2m1s
			200s  stop; ok G*      |           | 3m20s
			200s  hang F1          | F11       | 3m21s
			200s  ok F11           |           | -`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.run(table)
			s.idle()
		})
	}
}

// A runtime that cannot list one pod has full lists answer all requests.
func TestRuntimeListsNoPods(t *testing.T) {
	s := newScript(t, func(cfg *schedule.Config) { cfg.ListsPods = false })
	s.run(`
		0s start                   | F1:period | 1s
		0s ok F1                   |           | 1s
		0s request a-j; moving? a  | false     | 1s
		1s                         | F2:period | 2s
		1s ok F2; stop             |           | -`)
	s.idle()
}

// A full list hangs when it has run for a period, and for twice as long as the newest that
// succeeded or ten seconds.
func TestFullListHangs(t *testing.T) {
	for _, c := range []struct{ period, took, want time.Duration }{
		{period, 0, period},
		{period, period / 2, period},
		{period, 4 * period, 8 * period},
		{period, 6 * period, 10 * period},
		{15 * period, 6 * period, 15 * period},
	} {
		s := newScript(t, func(cfg *schedule.Config) { cfg.Period = c.period })
		s.Now = epoch.Add(-c.took)
		s.Begin(true, "")
		s.Now = epoch
		first := s.FullList
		s.Returned(first, nil, true)
		s.FullListEnded(first, true)
		s.Begin(true, "")
		for _, at := range []time.Duration{c.want - 1, c.want} {
			s.Now = epoch.Add(at)
			s.Expire()
			if got := !s.HangsSince().IsZero(); got != (at == c.want) || s.Wake() != epoch.Add(c.want) {
				t.Errorf("%+v: after %v it hangs: %v; wake %v", c, at, got, since(s.Wake()))
			}
		}
		if s.HangsSince() != epoch {
			t.Errorf("%+v: it hangs since %v", c, since(s.HangsSince()))
		}
	}
}

// The hang of a full list that is given up at its deadline lasts until a later one returns, or
// full lists are switched off.
func TestHangLasts(t *testing.T) {
	for name, end := range map[string]string{
		"a later list succeeds": "122s ok F2; hangs?   | -  | 2m3s",
		"a later list fails":    "122s fail F2; hangs? | -  | 2m3s",
		"others are given up too": `
			242s               | F2-slow F2-dead | 4m2s
			242s hang F2; hangs?    | 0s         | 4m2s
			243s                    | F3:period  | 4m3s`,
		"a dead list answers": `
			242s               | F2-slow F2-dead | 4m2s
			242s ok F2; hangs?      | -          | 4m3s`,
		"switched off during a list": `
			122s stop; hangs?       | 0s         | 2m2s
			122s stopped F2; hangs? | -          | -`,
		"switched off, and the list is given up": `
			242s stop          | F2-slow F2-dead | 4m2s
			242s hang F2; hangs?    | -          | -`,
		"switched off between lists": `
			242s               | F2-slow F2-dead | 4m2s
			242s hang F2; hangs?; stop; hangs? | 0s - | -`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.run(`
				0s   start           | F1:period       | 1s
				2m                   | F1-slow F1-dead | 2m0s
				2m   hang F1; hangs? | 0s              | 2m0s
				122s hangs?          | 0s F2:period    | 2m2s`)
			s.run(end)
		})
	}
}

// Stamps do not go back with the clock. Two may share their time; their numbers order them.
func TestStamps(t *testing.T) {
	s := newScript(t)
	s.run(`0s request a b | G1a G2b | 1s`)
	a, b := s.flying["G1a"].Stamp, s.flying["G2b"].Stamp
	if a.Time != b.Time || a.After(b) || !b.After(a) || a.After(a) {
		t.Errorf("stamps %v and %v", a, b)
	}
	s.run(`-1h relist | F3 | -59m59s`)
	if want := (schedule.Stamp{Time: epoch, Number: 3}); s.Last != want || s.FullList.Stamp != want {
		t.Errorf("got stamp %v", s.Last)
	}
}
