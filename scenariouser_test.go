package pleg_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// The commands that use the generator of a scenario, and those that say what it
// knows.

func (s *scenario) start(command) string { s.g.Start(); return "" }

func (s *scenario) stop(command) string {
	began := time.Now()
	s.g.Stop()
	return took("Stop", began)
}

func (s *scenario) relist(command) string {
	began := time.Now()
	s.g.Relist()
	return took("Relist", began)
}

func took(what string, began time.Time) string {
	if took := time.Since(began); took > 0 {
		return fmt.Sprintf("%s took %v", what, took)
	}
	return ""
}

// request asks for looks at one pod or several, one time or many, all at once.
func (s *scenario) request(c command) string {
	for range c.number("times", 1) {
		for _, a := range c.args {
			if a.Key == "pod" {
				s.g.RequestRelist(types.UID(a.Vals[0]))
			}
		}
	}
	return ""
}

func (s *scenario) reinspect(c command) string {
	s.g.RequestReinspect(types.UID(c.str("pod")))
	return ""
}

// advance lets time pass; a fake clock in steps of 10 ms.
func (s *scenario) advance(c command) string {
	d := c.parseDuration(c.first())
	if s.fake == nil {
		time.Sleep(d)
		return ""
	}
	for ; d > 0; d -= 10 * time.Millisecond {
		s.fake.Step(min(d, 10*time.Millisecond))
		synctest.Wait()
	}
	return ""
}

// jump sets a fake clock forwards or backwards at once.
func (s *scenario) jump(c command) string {
	if s.fake == nil {
		c.fatalf(`"node clock=fake" comes first`)
	}
	s.fake.SetTime(s.fake.Now().Add(c.parseDuration(c.first())))
	return ""
}

// since says a time as what passed since the beginning, to the millisecond.
func (s *scenario) since(at time.Time) string {
	d := at.Sub(s.began).Round(time.Millisecond)
	if d < 0 {
		return d.String()
	}
	return "+" + d.String()
}

// events says what Watch has brought; with "cause", why it was found.
func (s *scenario) events(c command) string { return say(s.watch, -1, c.has("cause")) }

// say reads n events, or all there are if n is negative.
func say(events <-chan *pleg.PodLifecycleEvent, n int, cause bool) string {
	var said strings.Builder
	for ; n != 0; n-- {
		synctest.Wait()
		select {
		case e, open := <-events:
			if !open {
				return said.String() + "closed\n"
			}
			said.WriteString(line(e))
			if e.IsSandbox() {
				said.WriteString(" (sandbox)")
			}
			if cause {
				said.WriteString(" because of " + string(e.Cause))
			}
			said.WriteString("\n")
		default:
			if said.Len() == 0 {
				return "no events\n"
			}
			return said.String()
		}
	}
	return said.String()
}

type scenarioSub struct {
	events <-chan *pleg.PodLifecycleEvent
	cancel context.CancelFunc
}

func (s *scenario) subscribe(c command) string {
	ctx, cancel := s.bubbleContext()
	s.subs[c.first()] = &scenarioSub{s.g.Subscribe(ctx, c.number("capacity", 0)), cancel}
	return ""
}

func (s *scenario) unsubscribe(c command) string { s.sub(c).cancel(); return "" }

// read reads what a subscription has, or n events of it.
func (s *scenario) read(c command) string {
	return say(s.sub(c).events, c.number("n", -1), c.has("cause"))
}

func (s *scenario) sub(c command) *scenarioSub {
	sub := s.subs[c.first()]
	if sub == nil {
		c.fatalf("nobody subscribed as %s", c.first())
	}
	return sub
}

// scenarioReader is a call of GetNewerThan.
type scenarioReader struct {
	name   string
	uid    types.UID
	cancel context.CancelFunc
	// done is closed when the call has returned, at a time and with an answer.
	done   chan struct{}
	at     time.Time
	status *pleg.PodStatus
	err    error
}

// block reads the cache for what is newer than now, or than a time from now.
func (s *scenario) block(c command) string {
	ctx, cancel := s.bubbleContext()
	r := &scenarioReader{name: c.first(), uid: types.UID(c.str("pod")), cancel: cancel, done: make(chan struct{})}
	minTime := s.clock.Now().Add(c.duration("newer"))
	s.readers = append(s.readers, r)
	s.joined.Go(func() {
		defer close(r.done)
		r.status, r.err = s.cache.GetNewerThanContext(ctx, r.uid, minTime)
		r.at = s.clock.Now()
	})
	return ""
}

// readersNow says what readers have read, each once, and which wait.
func (s *scenario) readersNow(command) string {
	var said strings.Builder
	var waiting []*scenarioReader
	for _, r := range s.readers {
		select {
		case <-r.done:
			r.cancel()
			fmt.Fprintf(&said, "%s at %s: ", r.name, s.since(r.at))
			if r.status == nil {
				fmt.Fprintf(&said, "%v\n", s.relative(r.err.Error()))
				continue
			}
			said.WriteString(s.sayStatus(r.status, r.err))
		default:
			waiting = append(waiting, r)
			fmt.Fprintf(&said, "%s waits\n", r.name)
		}
	}
	s.readers = waiting
	if said.Len() == 0 {
		return "no readers"
	}
	return said.String()
}

// relative replaces the dates in an error, which say when the bubble began.
func (s *scenario) relative(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		if at, err := time.Parse(time.RFC3339Nano, strings.TrimRight(w, ":,")); err == nil {
			words[i] = s.since(at) + w[len(strings.TrimRight(w, ":,")):]
		}
	}
	return strings.Join(words, " ")
}

func (s *scenario) cancel(c command) string {
	for _, r := range s.readers {
		if r.name == c.first() {
			r.cancel()
		}
	}
	return ""
}

// status says what the cache has of a pod, or of all.
func (s *scenario) status(c command) string {
	if c.has("pod") {
		return s.sayStatus(s.cache.Get(types.UID(c.str("pod"))))
	}
	var said strings.Builder
	for _, status := range s.cache.GetAll() {
		said.WriteString(s.sayStatus(s.cache.Get(status.ID)))
	}
	if said.Len() == 0 {
		return "the cache is empty"
	}
	return said.String()
}

func (s *scenario) sayStatus(status *pleg.PodStatus, err error) string {
	said := string(status.ID) + ":"
	for _, c := range status.ContainerStatuses {
		said += fmt.Sprintf(" %s=%s", c.ID.ID, c.State)
		if c.State == pleg.ContainerStateExited {
			said += fmt.Sprintf("(%d,%s)", c.ExitCode, c.Reason)
		}
	}
	for _, b := range status.SandboxStatuses {
		said += " sandbox:" + b.Id + map[bool]string{true: "=ready", false: "=notready"}[b.State == runtimeapi.PodSandboxState_SANDBOX_READY]
	}
	if len(status.IPs) > 0 {
		said += " " + strings.Join(status.IPs, " ")
	}
	if status.TimeStamp.IsZero() {
		said += " nothing"
	} else {
		said += ", of " + s.since(status.TimeStamp)
	}
	if err != nil {
		said += "; " + err.Error()
	}
	return said + "\n"
}

func (s *scenario) health(command) string {
	if ok, err := s.g.Healthy(); !ok {
		return "not healthy: " + err.Error()
	}
	return "healthy"
}

// report says what the health report has beside the health.
func (s *scenario) report(command) string {
	r := s.g.HealthReport()
	var said strings.Builder
	fmt.Fprintf(&said, "%d pods", r.Pods)
	if !r.LastRelist.IsZero() {
		fmt.Fprintf(&said, ", listed at %s", s.since(r.LastRelist))
	}
	if r.RelistError != "" {
		fmt.Fprintf(&said, "\nthe last list: %s", r.RelistError)
	}
	for _, call := range r.CallsInFlight {
		fmt.Fprintf(&said, "\nin flight since %s: %s", s.since(call.Since), strings.TrimSpace(call.Method+" "+cmp.Or(call.Object, string(call.PodUID))))
	}
	for _, t := range r.Troubled {
		fmt.Fprintf(&said, "\n%s:", t.PodUID)
		if !t.HangingSince.IsZero() {
			fmt.Fprintf(&said, " hangs since %s;", s.since(t.HangingSince))
		}
		fmt.Fprintf(&said, " %d failures", t.Failures)
		if t.Error != "" {
			fmt.Fprintf(&said, ": %s", t.Error)
		}
	}
	if r.BlockedReaders > 0 {
		fmt.Fprintf(&said, "\n%d blocked readers", r.BlockedReaders)
	}
	if r.Backlog > 0 {
		fmt.Fprintf(&said, "\nnews of %d pods not delivered", r.Backlog)
	}
	return said.String()
}

// metrics says the values of metrics that are not zero.
func (s *scenario) metrics(c command) string {
	families, err := s.reg.Gather()
	if err != nil {
		c.fatalf("%v", err)
	}
	var said []string
	for _, f := range families {
		if !slices.ContainsFunc(c.args, func(a datadriven.CmdArg) bool { return a.Key == f.GetName() }) {
			continue
		}
		for _, m := range f.GetMetric() {
			// Of these, the ones that a metric is not are nil, and say zero.
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if value != 0 {
				said = append(said, fmt.Sprintf("%s %v", name, value))
			}
		}
	}
	if len(said) == 0 {
		return "all zero"
	}
	return strings.Join(said, "\n")
}
