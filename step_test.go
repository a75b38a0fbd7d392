package pleg

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// TestStep runs the scripts in testdata/step, without a goroutine or a clock. A script is one story. Each
// block is one step: the inputs of the reconciler, and its outputs.
//
//	at 11ms
//	G2: a(a1=exited)
//	hint b
//	----
//	begin   G3 b (hint), Ia(a1=exited)
//	wake    1.011s
//
// Times count from the beginning of the script. F1 is the full list with stamp 1, G2 the pod list with
// stamp 2, Ia the inspection of pod a.
//
// The inputs are calls that return and requests. Calls return as "F1: PODS", "G2: POD", "G2: absent",
// "Ia: CONTAINERS", "F1 fails: ERROR" or "F1 stopped". In the answer of an inspection, "a1=exited:137"
// sets the exit code, which otherwise is 0, and "a1=running@2s" sets StartedAt.
//
// The requests are start, stop, relist, "request a", "reinspect a", "reader a" (which blocks), "hint a",
// "hint anything" (which names no pod), "exit a1" (an exit event of container a1), "exit b1 of b" (which
// also names the pod), "exit a1 at 2s" (with FinishedAt), and connected. An exit event reports the exit
// code 1.
//
// The outputs are the changes of the cache, the answers to blocked readers, and the events; the calls to
// cancel; the calls to begin, with the pod to inspect or the cause of the list; the numbers of the
// Relist callers that are done; and the time of the next step. An event about an exited container
// shows the exit code if it is known, and a question mark if the exit is unconfirmed.
//
// A first block "new" sets options. "state" prints what the reconciler knows of the pods, and "failing"
// prints the pods that it reports as failing.
//
// With the flag -rewrite, the test writes the output into the scripts instead of comparing it.
func TestStep(t *testing.T) {
	paths, err := filepath.Glob("testdata/step/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no scripts: %v", err)
	}
	namesRule := regexp.MustCompile(`(?m)\A(#.*\n)*# (Rules? \d|Core: )`)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !namesRule.Match(script) {
				t.Error("the comment at its top names no rule of docs/CONTRACT.md, and none of the core")
			}
			s := &stepper{t: t}
			datadriven.RunTest(t, path, s.directive)
		})
	}
}

// epoch is the start time of every script.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// stepper is a reconciler that a script drives step by step.
type stepper struct {
	t *testing.T

	r       *reconciler
	cache   *PodCache
	cached  map[types.UID]string // the state of the cache at the last step
	global  time.Time
	events  <-chan *PodLifecycleEvent
	calls   map[string]*schedule.Call // the calls in flight, by name
	callers []*relistCaller           // the callers of Relist, in the order of their calls
	readers []*blockedReader          // in the order of their calls

	now time.Time
	log []logged
}

// logged is one output of a step.
type logged struct{ what, text string }

func (s *stepper) make(d *datadriven.TestData) {
	cfg := schedule.Config{
		Period: time.Second, Timeout: 2 * time.Minute, Threshold: 3 * time.Minute, Workers: 8, ListsPods: true,
	}
	if d.Cmd == "new" {
		for _, arg := range d.CmdArgs {
			value := strings.Join(arg.Vals, "")
			switch arg.Key {
			case "timeout":
				cfg.Timeout = s.duration(value)
			case "threshold":
				cfg.Threshold = s.duration(value)
			case "workers":
				s.scan(value, &cfg.Workers)
			case "full-lists-only":
				cfg.ListsPods = false
			default:
				s.t.Fatalf("%s: there is no option %s", d.Pos, arg.Key)
			}
		}
	}
	s.cache, s.calls, s.now = NewCache(), make(map[string]*schedule.Call), epoch
	m := newMetrics()
	updates := newBroadcaster(func(n int) { m.discardEvents.Add(float64(n)) })
	s.events = updates.Subscribe(s.t.Context(),
		subscriptionOptions{Events: inSteps(stepEvents), Capacity: 1000, Lasting: true})
	s.t.Cleanup(updates.Halt)
	s.r = newReconciler(cfg, epoch, s.cache, updates, m)
}

func (s *stepper) directive(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	if s.r == nil {
		s.make(d)
	}
	switch d.Cmd {
	case "new":
		return ""
	case "at":
		s.now = epoch.Add(s.duration(d.CmdArgs[0].Key))
		in := inputs{}
		for line := range strings.Lines(d.Input) {
			s.take(&in, strings.TrimSpace(line))
		}
		return s.step(&in)
	case "state":
		return s.state()
	case "failing":
		return s.failing()
	default:
		t.Fatalf("%s: there is no directive %s", d.Pos, d.Cmd)
		return ""
	}
}

// step makes one step and returns the outputs, with one line for each kind.
func (s *stepper) step(in *inputs) string {
	s.log = s.log[:0]
	out := s.r.step(s.now, in)
	s.readCache()
	for _, r := range s.readers {
		select {
		case answer := <-r.ch:
			s.note("reader", string(answer.status.ID)+statusText(answer.status))
		default:
		}
	}
	s.readEvents()
	for _, c := range out.cancel {
		if name := s.inFlight(c.Call); name != "" {
			s.note("cancel", fmt.Sprintf("%s: %v", name, c.cause))
		}
	}
	for _, c := range out.begin {
		s.begins(c)
	}
	for _, caller := range out.relisted {
		for i, other := range s.callers {
			if caller == other {
				s.note("relisted", fmt.Sprint(i+1))
			}
		}
	}
	if !out.wake.IsZero() {
		if !out.wake.After(s.now) {
			s.t.Errorf("at %s: wake at %s", s.since(s.now), s.since(out.wake))
		}
		s.note("wake", s.since(out.wake))
	}
	return s.text()
}

// text returns the log. Consecutive outputs of the same kind are on one line if it does not become
// too long.
func (s *stepper) text() string {
	const width = 100
	var b strings.Builder
	column := 0
	for i, l := range s.log {
		switch {
		case i == 0 || s.log[i-1].what != l.what:
			if i > 0 {
				b.WriteString("\n")
			}
			column, _ = fmt.Fprintf(&b, "%-7s ", l.what)
		case column+len(l.text) > width:
			b.WriteString(",\n")
			column, _ = fmt.Fprintf(&b, "%-7s ", "")
		default:
			n, _ := b.WriteString(", ")
			column += n
		}
		b.WriteString(l.text)
		column += len(l.text)
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

func (s *stepper) note(what, text string) { s.log = append(s.log, logged{what, text}) }

func (s *stepper) begins(c beginCall) {
	name := nameOfCall(c.Call)
	if s.calls[name] != nil {
		s.t.Errorf("%s is in flight already", name)
	}
	s.calls[name] = c.Call
	switch c.Kind {
	case schedule.ListAll:
		s.note("begin", fmt.Sprintf("%s (%s)", name, c.Cause))
	case schedule.ListPod:
		s.note("begin", fmt.Sprintf("%s %s (%s)", name, c.UID, c.Cause))
	case schedule.Inspect:
		if c.pod == nil {
			s.t.Errorf("at %s: %s begins and has no pod", s.since(s.now), name)
			c.pod = &Pod{ID: c.UID}
		}
		s.note("begin", fmt.Sprintf("I%s", podText(c.pod)))
	}
}

func nameOfCall(c *schedule.Call) string {
	switch c.Kind {
	case schedule.ListAll:
		return fmt.Sprintf("F%d", c.Stamp.Number)
	case schedule.ListPod:
		return fmt.Sprintf("G%d", c.Stamp.Number)
	default:
		return "I" + string(c.UID)
	}
}

// inFlight returns the name of a call; "" if it has returned.
func (s *stepper) inFlight(c *schedule.Call) string {
	for name, other := range s.calls {
		if other == c {
			return name
		}
	}
	return ""
}

// readEvents logs the events since the last step.
func (s *stepper) readEvents() {
	for {
		select {
		case e := <-s.events:
			text := fmt.Sprintf("%s %s", e.ID, strings.TrimPrefix(string(e.Type), "Container"))
			if e.Container != nil {
				text += " " + e.Container.ID.ID
			}
			if e.Type != ContainerStarted && hasExited(e.Status) {
				text += fmt.Sprintf(" (%d", e.Status.ExitCode)
				if e.Status.Unconfirmed {
					text += "?"
				}
				text += ")"
			}
			s.note("event", text)
		default:
			return
		}
	}
}

// readCache logs the changes of the cache. "as of" is the freshness of a pod that is fresher than
// the newest full list. "still as of" is the freshness of a pod that full lists do not make
// fresher.
func (s *stepper) readCache() {
	c := s.cache
	if !c.global.Equal(s.global) {
		s.global = c.global
		s.note("cache", "all as of "+s.since(c.global))
	}
	now := make(map[types.UID]string)
	for _, uid := range sortedKeys(c.entries) {
		e := c.entries[uid]
		text := string(uid) + " absent"
		if e.status != nil || e.listed != nil {
			text = string(uid) + statusText(c.readLocked(uid).status)
		}
		if e.err != nil {
			short, _, _ := strings.Cut(e.err.Error(), ":")
			text += fmt.Sprintf(" and %q", short)
		}
		switch {
		case e.held:
			text += " still as of " + s.since(e.observed)
		case e.observed.After(c.global):
			text += " as of " + s.since(e.observed)
		}
		if now[uid] = text; s.cached[uid] != text {
			s.note("cache", text)
		}
	}
	for _, uid := range sortedKeys(s.cached) {
		if now[uid] == "" {
			s.note("cache", string(uid)+" forgotten")
		}
	}
	s.cached = now
}
