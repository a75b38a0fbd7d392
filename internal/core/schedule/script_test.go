package schedule_test

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

const period, timeout = time.Second, 2 * time.Minute

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script uses a schedule as the reconciler does. Each row of a table is a step: the time and the
// inputs, the outputs of the schedule, and the next wake-up time. F3 is the full list with stamp 3,
// G4b the pod list of pod b with stamp 4, Ic the inspection of pod c. The cause of a list follows
// after a colon, unless it is "demand".
type script struct {
	*schedule.Scheduler
	t      *testing.T
	cfg    schedule.Config
	pods   map[types.UID]*pod
	flying map[string]*schedule.Call

	relist    bool   // a caller of Relist waits for a full list to begin
	requested string // the cause of a requested full list; empty if none is requested
}

// pod is a pod with the work that is wanted for it.
type pod struct {
	schedule.Entry
	want schedule.Wants
}

func newScript(t *testing.T, change ...func(*schedule.Config)) *script {
	cfg := schedule.Config{Period: period, Timeout: timeout, Threshold: 3 * time.Minute, Workers: 2, ListsPods: true}
	for _, f := range change {
		f(&cfg)
	}
	s := &script{schedule.New(cfg), t, cfg, make(map[types.UID]*pod), make(map[string]*schedule.Call), false, ""}
	s.Now = epoch
	return s
}

// runTables runs each table to the end, with its own schedule.
func runTables(t *testing.T, tables map[string]string) {
	for name, table := range tables {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.run(table)
			s.end()
		})
	}
}

// run runs a table, and fails at the first row with other outputs.
func (s *script) run(table string) {
	s.t.Helper()
	for row := range strings.Lines(strings.TrimSpace(table)) {
		columns := strings.Split(row, "|")
		when, inputs, _ := strings.Cut(strings.TrimSpace(columns[0]), " ")
		s.Now = at(when)
		var did []string
		for input := range strings.SplitSeq(inputs, ";") {
			did = append(did, s.input(input)...)
		}
		did = append(append(did, s.expire()...), s.begin()...)
		got := strings.Join(did, " ") + " | " + since(s.Wake())
		if want := strings.Join(strings.Fields(columns[1]), " ") + " | " + strings.TrimSpace(columns[2]); got != want {
			s.t.Fatalf("%s\ngot  %s\nwant %s", row, got, want)
		}
	}
}

// input performs an input, or returns the answer to a question.
func (s *script) input(text string) (answer []string) {
	verb, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	names := strings.Fields(rest)
	switch verb {
	case "":
	case "start", "stop":
		s.SetPeriodic(verb == "start")
	case "relist":
		s.relist = true
	case "all": // the cause of a requested full list; without a cause, the request is withdrawn
		s.requested = rest
	case "ok", "fail", "hang":
		for _, name := range slices.Sorted(maps.Keys(s.flying)) {
			if slices.ContainsFunc(names, func(p string) bool { match, _ := path.Match(p, name); return match }) {
				s.returns(verb, name)
			}
		}
	case "canary?":
		return []string{fmt.Sprint(s.TakeCanary())}
	case "hangs?":
		return []string{since(s.FullListsStuckSince)}
	case "wake": // sets the wake-up time of a pod
		s.pod(names[0]).want.Wake = at(names[1])
		s.plan(s.pod(names[0]))
	default:
		for _, name := range names {
			for c := name[0]; c <= name[len(name)-1]; c++ { // "a-c" means a, b and c
				answer = append(answer, s.podInput(verb, s.pod(string(c)))...)
			}
		}
	}
	return answer
}

func (s *script) podInput(verb string, p *pod) []string {
	switch verb {
	case "request":
		p.want.List, p.want.Cause = s.Last.Number+1, "demand"
	case "inspect", "leave":
		p.want.Inspect = verb == "inspect"
	case "round":
		s.AddToRound(&p.Entry)
		return nil
	case "gone":
		p.want.Inspect = false
		s.Gone(&p.Entry)
	case "moving?":
		return []string{fmt.Sprint(s.Moving(&p.Entry))}
	case "stuck?":
		return []string{since(p.StuckSince)}
	default:
		s.t.Fatalf("there is no input %q", verb)
	}
	s.plan(p)
	return nil
}

// returns ends a call in flight. how is "ok", "fail" or "hang". With "hang", the call had timed
// out, and returns an error after its cancellation.
func (s *script) returns(how, name string) {
	c, of := s.flying[name], (*schedule.Entry)(nil)
	delete(s.flying, name)
	if c.UID != "" {
		of = &s.pods[c.UID].Entry
	}
	s.Returned(c, of, how != "hang")
	if c.Kind == schedule.ListAll && !c.TimedOut {
		s.FullListEnded(c, how == "ok")
	}
	for uid, p := range s.pods {
		if how == "ok" && (c.UID == "" || c.UID == uid) && p.want.List <= c.Stamp.Number {
			p.want.List = 0
		}
	}
	s.planAll()
}

func (s *script) expire() (did []string) {
	woken, late := s.Expire()
	for _, woken := range woken {
		p := s.pods[woken.UID]
		if at := p.want.Wake; !at.IsZero() && !s.Now.Before(at) {
			p.want.Wake = time.Time{}
			did = append(did, string(p.UID))
		}
		s.plan(p)
	}
	for _, l := range late {
		did = append(did, name(l.Call)+map[bool]string{false: "-slow", true: "-dead"}[l.NowTimedOut])
		if l.Entry == nil && l.NowTimedOut {
			s.FullListEnded(l.Call, false)
		}
		s.planAll()
	}
	return did
}

func (s *script) begin() (did []string) {
	for _, c := range s.Begin(s.relist, s.requested) {
		text := name(c)
		s.flying[text] = c
		if c.Kind == schedule.Inspect {
			s.podInput("leave", s.pods[c.UID])
		} else if c.Cause != "demand" {
			text += ":" + c.Cause
		}
		s.relist = s.relist && c.Kind != schedule.ListAll
		did = append(did, text)
	}
	return did
}

func (s *script) pod(uid string) *pod {
	if s.pods[types.UID(uid)] == nil {
		s.pods[types.UID(uid)] = &pod{Entry: schedule.Entry{UID: types.UID(uid)}}
	}
	return s.pods[types.UID(uid)]
}

func (s *script) plan(p *pod) { s.Plan(&p.Entry, p.want) }

func (s *script) planAll() {
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		s.plan(s.pods[uid])
	}
}

// end lets all calls return, and fails if the schedule still contains any work.
func (s *script) end() {
	s.t.Helper()
	s.SetPeriodic(false)
	s.requested, s.relist = "", true // some requests are answered only by a full list
	for s.begin(); len(s.flying) > 0; s.begin() {
		s.input("ok *")
	}
	for _, p := range s.pods {
		p.want.Wake = time.Time{}
		s.podInput("gone", p)
	}
	want := schedule.Counts{ListSlots: schedule.PodListsAtOnce}
	if s.Counts() != want || s.FullList != nil || !s.Wake().IsZero() {
		s.t.Fatalf("left are %+v, full list %v, wake %s", s.Counts(), s.FullList, since(s.Wake()))
	}
}

func name(c *schedule.Call) string {
	if c.Kind == schedule.Inspect {
		return "I" + string(c.UID)
	}
	return fmt.Sprintf("%c%d%s", "FG"[c.Kind], c.Stamp.Number, c.UID)
}

func since(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Sub(epoch).String()
}

// The function at is the inverse of the function since.
func at(text string) time.Time {
	d, err := time.ParseDuration(text)
	if err != nil {
		return time.Time{}
	}
	return epoch.Add(d)
}
