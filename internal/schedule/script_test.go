package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

const (
	ms     = time.Millisecond
	period = time.Second
	// timeout and threshold are those of Config, workers its Workers.
	timeout   = 2 * time.Minute
	threshold = 3 * time.Minute
	workers   = 2
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script drives a schedule through a story. It names calls as the rules of the core do:
// F3 is the full list with stamp 3, G4 the list of one pod with stamp 4, Ia the
// inspection of pod a.
type script struct {
	*schedule.Scheduler
	t      *testing.T
	flying map[string]*schedule.Call
}

func newScript(t *testing.T, change ...func(*schedule.Config)) *script {
	cfg := schedule.Config{
		Period: period, Timeout: timeout, Threshold: threshold, Workers: workers, ListsPods: true,
	}
	for _, f := range change {
		f(&cfg)
	}
	s := &script{Scheduler: schedule.New(cfg), t: t, flying: make(map[string]*schedule.Call)}
	s.Advance(epoch)
	return s
}

func name(c *schedule.Call) string {
	switch c.Kind {
	case schedule.ListAll:
		return fmt.Sprintf("F%d", c.Stamp.Number)
	case schedule.ListPod:
		return fmt.Sprintf("G%d", c.Stamp.Number)
	default:
		return "I" + string(c.UID)
	}
}

// step has the clock show a time since the epoch, and compares what there is to do then:
// calls that have become slow or dead, and calls that begin with their cause.
func (s *script) step(at time.Duration, want ...string) {
	s.t.Helper()
	s.Advance(epoch.Add(at))
	s.does(want...)
}

// does is step at the time that it is.
func (s *script) does(want ...string) {
	s.t.Helper()
	s.begin(false, want...)
}

// begin is does while a reader is blocked, or none is.
func (s *script) begin(blocked bool, want ...string) {
	s.t.Helper()
	var got []string
	for _, late := range s.Expire() {
		got = append(got, name(late.Call)+map[bool]string{false: " slow", true: " dead"}[late.NowDead])
	}
	for _, c := range s.Begin(blocked) {
		if s.flying[name(c)] != nil {
			s.t.Fatalf("%s is in flight already", name(c))
		}
		s.flying[name(c)] = c
		switch c.Kind {
		case schedule.ListAll:
			got = append(got, fmt.Sprintf("%s %s", name(c), c.Cause))
		case schedule.ListPod:
			got = append(got, fmt.Sprintf("%s %s %s", name(c), c.UID, c.Cause))
		default:
			got = append(got, name(c))
		}
	}
	s.same("what there is to do", got, want)
}

func (s *script) same(what string, got, want any) {
	s.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Fatalf("at %v: %s (-want +got):\n%s", s.Now().Sub(epoch), what, diff)
	}
}

// round has all pods have had their turn that are inspected while a full list hangs.
func (s *script) round() {
	s.t.Helper()
	s.same("a round is due", s.TakeCanary(), true)
	s.EndRound()
}

// wakes compares the time of the clock at which there is more to do; -1 for never.
func (s *script) wakes(want time.Duration) {
	s.t.Helper()
	got := time.Duration(-1)
	if at := s.Wake(); !at.IsZero() {
		got = at.Sub(epoch)
	}
	s.same("wake", got, want)
}

// returns has a call return; answered: the runtime has answered it.
func (s *script) returns(which string, answered bool) *schedule.Call {
	s.t.Helper()
	c := s.flying[which]
	if c == nil {
		s.t.Fatalf("%s is not in flight", which)
	}
	delete(s.flying, which)
	s.Returned(c, answered)
	return c
}

// listed has lists succeed: each answers the requests that are older than it. It returns
// the pods that were answered.
func (s *script) listed(lists ...string) (answered []types.UID) {
	s.t.Helper()
	for _, list := range lists {
		c := s.returns(list, true)
		uids := s.Requested()
		if c.Kind == schedule.ListPod {
			uids = []types.UID{c.UID}
		}
		for _, uid := range uids {
			if s.PodListed(uid, c.Stamp) {
				answered = append(answered, uid)
			}
		}
		if c.Kind == schedule.ListAll {
			s.FullListed(c)
		}
	}
	return answered
}

// fails has lists fail.
func (s *script) fails(lists ...string) {
	s.t.Helper()
	for _, list := range lists {
		if c := s.returns(list, true); c.Kind == schedule.ListPod {
			s.PodListFailed(c.UID)
		} else {
			s.FullListFailed()
		}
	}
}

// inspected has inspections return that the runtime has answered.
func (s *script) inspected(inspections ...string) {
	s.t.Helper()
	for _, i := range inspections {
		s.returns(i, true)
	}
}

// forgotten fails unless nothing is kept of any pod.
func (s *script) forgotten() {
	s.t.Helper()
	s.same("pods with something open", s.OpenPods(), 0)
}

// requestMany has n pods requested, called p000, p001 and so on.
func (s *script) requestMany(n int) {
	for i := range n {
		s.Request(numbered(i), "demand")
	}
}

func numbered(i int) types.UID { return types.UID(fmt.Sprintf("p%03d", i)) }

// lines are "G1 p000 demand" and so on, for n pods of requestMany from the i-th.
func lines(stamp, i, n int) []string {
	var lines []string
	for k := range n {
		lines = append(lines, fmt.Sprintf("G%d %s demand", stamp+k, numbered(i+k)))
	}
	return lines
}

// names are the calls of lines.
func names(stamp, n int) []string {
	var names []string
	for k := range n {
		names = append(names, fmt.Sprintf("G%d", stamp+k))
	}
	return names
}
