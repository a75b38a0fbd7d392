package pleg

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	exploreStates = flag.Int("explore.states", 0,
		"how many states TestExplore goes through in every scope; 0: a few, in a third of a second")
	exploreWalk = flag.Duration("explore.walk", 0, "for how long TestExploreWalk walks in every scope")
	exploreOnly = flag.String("explore.scope", "", "only the scopes whose name begins with this")
)

// exploration visits the states of a scope, breadth first.
type exploration struct {
	*scope
	things  *things
	printer *printer
	steps   []origin
	known   map[fingerprint]struct{}
	depth   int
	edges   int
}

// origin is the action by which a state was first reached, and the state before it.
type origin struct {
	parent int32
	action action
}

func newExploration(sc *scope) *exploration {
	return &exploration{
		scope: sc, things: newThings(), printer: newPrinter(), steps: []origin{{parent: -1}},
		known: make(map[fingerprint]struct{}),
	}
}

func (x *exploration) path(id int32) []action {
	var path []action
	for ; id > 0; id = x.steps[id].parent {
		path = append(path, x.steps[id].action)
	}
	slices.Reverse(path)
	return path
}

func (x *exploration) replay(path []action) *world {
	w := newWorld(x.scope, x.things)
	for _, a := range path {
		w.apply(a)
	}
	return w
}

// rests are the four ways to bring a state to rest.
var rests = [...]struct{ stale, periodic bool }{{true, false}, {false, true}, {false, false}, {true, true}}

// problem is a broken rule, and the path of actions that led to it.
type problem struct {
	what string
	path []action
	rest int // an index into rests; -1 if the world was not brought to rest
}

// explore visits states until their number reaches limit or the time allowed has passed; an allowed
// time of zero is no limit. It returns the first problem. all is true if it visited every state.
func (x *exploration) explore(limit int, allowed time.Duration) (found *problem, all bool) {
	end := time.Now().Add(allowed)
	first := x.replay(nil)
	if first.broken != "" {
		return &problem{first.broken, nil, -1}, false
	}
	x.known[x.printer.print(first)] = struct{}{}
	depths := []int{0}
	for id := int32(0); int(id) < len(x.steps); id++ {
		if len(x.steps) >= limit || allowed > 0 && time.Now().After(end) {
			return nil, false
		}
		path := x.path(id)
		x.depth = depths[id]
		for _, a := range x.replay(path).next() {
			x.edges++
			next := append(slices.Clip(path), a)
			w := x.replay(next)
			if w.broken != "" {
				return &problem{w.broken, next, -1}, false
			}
			seen := x.printer.print(w)
			if _, known := x.known[seen]; known {
				continue
			}
			x.known[seen] = struct{}{}
			x.steps = append(x.steps, origin{id, a})
			depths = append(depths, x.depth+1)
			if found := x.restsOf(next, int(seen[0]>>7&1)); found != nil {
				return found, false
			}
		}
	}
	return nil, true
}

// restsOf brings the state at the end of a path to rest in two of the four ways: the first two or
// the last two. It returns the first problem.
func (x *exploration) restsOf(path []action, which int) *problem {
	for i := which * 2; i < which*2+2; i++ {
		w := x.replay(path)
		w.rest(rests[i].stale, rests[i].periodic)
		if w.broken != "" {
			return &problem{w.broken, path, i}
		}
	}
	return nil
}

// fails reports whether a path leads to a problem of the same kind as like. It also returns the
// actions that were possible; it skips the others.
func (x *exploration) fails(path []action, like *problem) ([]action, bool) {
	w := newWorld(x.scope, x.things)
	done := make([]action, 0, len(path))
	for _, a := range path {
		if !slices.Contains(w.next(), a) {
			continue
		}
		done = append(done, a)
		if w.apply(a); w.broken != "" {
			break
		}
	}
	if like.rest >= 0 && w.broken == "" {
		w.rest(rests[like.rest].stale, rests[like.rest].periodic)
	}
	return done, kindOf(w.broken) == kindOf(like.what)
}

func kindOf(what string) string {
	kind, _, _ := strings.Cut(what, ":")
	return kind
}

// shrink shortens a problem's path. It removes actions that are not needed to cause the problem.
func (x *exploration) shrink(p *problem) {
	for again := true; again; {
		again = false
		for i := len(p.path) - 1; i >= 0; i-- {
			without := slices.Delete(slices.Clone(p.path), i, i+1)
			if done, fails := x.fails(without, p); fails && len(done) < len(p.path) {
				p.path, again = done, true
				i = min(i, len(done))
			}
		}
	}
}

// show replays a path and describes every step. If the problem occurred at rest, it also describes
// the steps to rest.
func (x *exploration) show(p *problem) string {
	var b strings.Builder
	w := newWorld(x.scope, x.things)
	w.tracing = true
	line := func(what string) {
		fmt.Fprintf(&b, "\n  %-42s %-14s %v", what, "-> "+strings.Join(w.begun, " "), w)
		w.begun = w.begun[:0]
	}
	line("")
	for _, a := range p.path {
		w.apply(a)
		line(a.String())
	}
	if p.rest >= 0 {
		lines := 0
		w.trace = func(a action) {
			if lines++; lines < 30 {
				line("  at rest: " + a.String())
			}
		}
		w.rest(rests[p.rest].stale, rests[p.rest].periodic)
		line(fmt.Sprintf("  at rest %v", rests[p.rest]))
	}
	return fmt.Sprintf("%s, after %d steps: %s%s", x.name, len(p.path), w.broken, b.String())
}

// TestExplore tries all possible actions in small scopes, in every order, until its limit of time
// or states.
func TestExplore(t *testing.T) {
	scopes := exploredScopes()
	for i := range scopes {
		sc := &scopes[i]
		if !strings.HasPrefix(sc.name, *exploreOnly) {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			limit, allowed := *exploreStates, time.Duration(0)
			if limit == 0 {
				limit, allowed = 600, 300*time.Millisecond
			}
			began := time.Now()
			x := newExploration(sc)
			found, all := x.explore(limit, allowed)
			if found != nil {
				t.Fatal(x.show(found))
			}
			t.Logf("%d states, %d steps, depth %d, all: %v, in %v",
				len(x.steps), x.edges, x.depth, all, time.Since(began).Round(time.Millisecond))
		})
	}
}

// TestExploreWalk reaches deep states, which TestExplore does not reach in its time.
func TestExploreWalk(t *testing.T) {
	allowed := *exploreWalk
	if allowed == 0 {
		allowed = 60 * time.Millisecond
	}
	scopes := walkedScopes()
	for i := range scopes {
		sc := &scopes[i]
		if !strings.HasPrefix(sc.name, *exploreOnly) {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			x := newExploration(sc)
			end := time.Now().Add(allowed)
			walks, steps := 0, 0
			for seed := uint64(1); time.Now().Before(end); seed++ {
				found := x.walk(rand.New(rand.NewPCG(seed, 7)), &steps)
				if found != nil {
					x.shrink(found)
					t.Fatalf("seed %d: %s", seed, x.show(found))
				}
				walks++
			}
			t.Logf("%d walks, %d steps", walks, steps)
		})
	}
}

// walk performs random actions, and then brings the world to rest.
func (x *exploration) walk(rnd *rand.Rand, steps *int) *problem {
	w := newWorld(x.scope, x.things)
	var path []action
	for range 5 + rnd.IntN(60) {
		as := w.next()
		if len(as) == 0 {
			break
		}
		a := as[rnd.IntN(len(as))]
		if rnd.IntN(2) == 0 { // otherwise, most actions would be the many reads of one call
			kind := a.kind
			a = as[rnd.IntN(len(as))]
			for range 3 {
				if a.kind == kind {
					a = as[rnd.IntN(len(as))]
				}
			}
		}
		path = append(path, a)
		*steps++
		if w.apply(a); w.broken != "" {
			return &problem{w.broken, path, -1}
		}
	}
	i := rnd.IntN(len(rests))
	w.rest(rests[i].stale, rests[i].periodic)
	if w.broken != "" {
		return &problem{w.broken, path, i}
	}
	return nil
}
