package schedule_test

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

const period, timeout = time.Second, 2 * time.Minute

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script uses a schedule as the reconciler does.
//
// Its tables have a row for each step: the time and what happens then, what the schedule does,
// and when there is more to do. Calls are named by their kind: F3 is the full list with stamp 3,
// G4b the single-pod list of pod b with stamp 4, Ic the inspection of pod c. A list that begins
// has its cause behind a colon, unless that is "demand".
type script struct {
	*schedule.Scheduler
	t      *testing.T
	cfg    schedule.Config
	pods   map[types.UID]*pod
	flying map[string]*schedule.Call

	relist    bool   // a caller of Relist waits for a full list to begin
	requested string // the cause of the open request for a full list; empty for none
}

// pod is a pod, and what is wanted of it.
type pod struct {
	schedule.Pod
	want schedule.Wants
}

func newScript(t *testing.T, change ...func(*schedule.Config)) *script {
	cfg := schedule.Config{
		Period: period, Timeout: timeout, Threshold: 3 * time.Minute, Workers: 2, ListsPods: true,
	}
	for _, f := range change {
		f(&cfg)
	}
	s := &script{
		Scheduler: schedule.New(cfg), t: t, cfg: cfg,
		pods: make(map[types.UID]*pod), flying: make(map[string]*schedule.Call),
	}
	s.Now = epoch
	return s
}

// run runs a table.
func (s *script) run(table string) {
	s.t.Helper()
	for row := range strings.Lines(strings.TrimSpace(table)) {
		columns := strings.Split(row+"||", "|")
		at, inputs, _ := strings.Cut(strings.TrimSpace(columns[0]), " ")
		s.Now = epoch.Add(s.duration(at))
		var did []string
		for input := range strings.SplitSeq(inputs, ";") {
			if words := strings.Fields(input); len(words) > 0 {
				did = append(did, s.input(words[0], words[1:])...)
			}
		}
		did = append(append(did, s.expire()...), s.begin()...)
		got := []string{strings.Join(did, " "), since(s.Wake())}
		want := []string{strings.Join(strings.Fields(columns[1]), " "), strings.TrimSpace(columns[2])}
		if diff := cmp.Diff(want, got); diff != "" {
			s.t.Fatalf("%s (-want +got):\n%s", row, diff)
		}
	}
}

// input acts on one input, or returns the answer to a question.
func (s *script) input(verb string, names []string) (answer []string) {
	switch verb {
	case "start", "stop":
		s.SetPeriodic(verb == "start")
	case "relist":
		s.relist = true
	case "all": // the cause of a request for a full list; none to take it back
		s.requested = strings.Join(names, "")
	case "wake": // a pod at a time
		s.pod(names[0]).want.Wake = time.Time{}
		if names[1] != "-" {
			s.pod(names[0]).want.Wake = epoch.Add(s.duration(names[1]))
		}
		s.plan(s.pod(names[0]))
	case "ok", "fail", "hang", "stopped":
		for _, pattern := range names {
			for _, name := range slices.Sorted(maps.Keys(s.flying)) {
				if match, _ := path.Match(pattern, name); match {
					s.returns(verb, name)
				}
			}
		}
	case "canary?":
		return []string{fmt.Sprint(s.TakeCanary())}
	case "ended":
		s.EndRound()
	case "resume?":
		return []string{fmt.Sprint(s.InspectionSucceeded())}
	case "hangs?":
		return []string{since(s.HangsSince())}
	default:
		for _, uid := range pods(names) {
			answer = append(answer, s.podInput(verb, s.pod(uid))...)
		}
	}
	return answer
}

func (s *script) podInput(verb string, p *pod) (answer []string) {
	switch verb {
	case "request":
		p.want.List, p.want.Cause = s.Last.Number+1, "demand"
	case "inspect", "leave":
		p.want.Inspect = verb == "inspect"
	case "gone":
		s.Gone(&p.Pod)
		p.want.Inspect = false
	case "moving?":
		return []string{fmt.Sprint(s.Moving(&p.Pod))}
	case "hung?":
		return []string{since(p.HungSince)}
	default:
		s.t.Fatalf("there is no input %q", verb)
	}
	s.plan(p)
	return nil
}

// returns has a call return. If it hangs, it has been cancelled after its deadline.
func (s *script) returns(how, name string) {
	c := s.flying[name]
	delete(s.flying, name)
	if c.Kind != schedule.ListAll {
		p := s.pods[c.UID]
		s.Returned(c, &p.Pod, how != "hang")
		if how == "ok" && p.want.List <= c.Stamp.Number {
			p.want.List = 0
		}
		s.plan(p)
		return
	}
	s.Returned(c, nil, how != "hang")
	if !c.Dead && how != "stopped" {
		s.FullListEnded(c, how == "ok")
	}
	for _, p := range s.pods {
		if how == "ok" && !c.Dead && p.want.List <= c.Stamp.Number {
			p.want.List = 0
		}
	}
	s.planAll()
}

func (s *script) expire() (did []string) {
	woken, late := s.Expire()
	for _, p := range woken {
		own := s.pods[p.UID]
		if at := own.want.Wake; !at.IsZero() && !s.Now.Before(at) {
			own.want.Wake = time.Time{}
			did = append(did, string(p.UID))
		}
		s.plan(own)
	}
	for _, l := range late {
		did = append(did, name(l.Call)+map[bool]string{false: "-slow", true: "-dead"}[l.NowDead])
		if l.Pod != nil {
			continue
		}
		if l.NowDead {
			s.FullListEnded(l.Call, false)
		}
		s.planAll()
	}
	return did
}

func (s *script) begin() (did []string) {
	for _, c := range s.Begin(s.relist, s.requested) {
		text := name(c)
		if s.flying[text] != nil {
			s.t.Fatalf("%s is in flight already", text)
		}
		s.flying[text] = c
		switch {
		case c.Kind == schedule.ListAll:
			s.relist = false
		case c.Kind == schedule.Inspect:
			s.pods[c.UID].want.Inspect = false
			s.plan(s.pods[c.UID])
		}
		if c.Kind != schedule.Inspect && c.Cause != "demand" {
			text += ":" + c.Cause
		}
		did = append(did, text)
	}
	return did
}

func (s *script) pod(uid string) *pod {
	if s.pods[types.UID(uid)] == nil {
		s.pods[types.UID(uid)] = &pod{Pod: schedule.Pod{UID: types.UID(uid)}}
	}
	return s.pods[types.UID(uid)]
}

func (s *script) plan(p *pod) { s.Plan(&p.Pod, p.want) }

func (s *script) planAll() {
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		s.plan(s.pods[uid])
	}
}

// idle fails unless nothing is left in the schedule.
func (s *script) idle() {
	s.t.Helper()
	if diff := cmp.Diff(schedule.Counts{ListSlots: schedule.PodListsAtOnce}, s.Counts()); diff != "" {
		s.t.Fatalf("what is left (-want +got):\n%s", diff)
	}
	if len(s.flying) > 0 || s.FullList != nil || !s.Wake().IsZero() {
		s.t.Fatalf("left are %v, full list %v, wake %s", s.flying, s.FullList, since(s.Wake()))
	}
}

func name(c *schedule.Call) string {
	if c.Kind == schedule.Inspect {
		return "I" + string(c.UID)
	}
	return fmt.Sprintf("%c%d%s", "FG"[c.Kind], c.Stamp.Number, c.UID)
}

// pods returns the pods a, b, c for "a-c".
func pods(names []string) (uids []string) {
	for _, name := range names {
		if len(name) != 3 {
			uids = append(uids, name)
			continue
		}
		for c := name[0]; c <= name[2]; c++ {
			uids = append(uids, string(c))
		}
	}
	return uids
}

func since(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Sub(epoch).String()
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}
