package plegz_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/healthreport"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// The sentence names a stuck call, when it began, and its pod. It also reports a failed inspection
// and a stuck list.
func TestSentence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		a, b := n.setPod("shop", "a", plegtest.Running("a")), n.setPod("shop", "b", plegtest.Running("b"))
		n.setPod("shop", "c", plegtest.Running("c"))
		n.pass(time.Second)
		expect := func(level, sentence string) {
			t.Helper()
			n.pass(2 * time.Second)
			if s := n.state(); s.Level != level || !strings.HasPrefix(s.Sentence, sentence) {
				t.Errorf("%s: %s\nwant %s: %s", s.Level, s.Sentence, level, sentence)
			}
		}
		expect("ok", "Healthy: 3 pods, the event stream is connected.")
		fail := n.Fail(plegtest.GetPodStatus, b, errors.New("no such task"))
		n.ExitContainer(b, "b", 1, "Error")
		expect("warning", "Degraded: the inspection of pod shop/b has failed ")
		n.Block(plegtest.GetPodStatus, a)
		n.ExitContainer(a, "a", 1, "Error")
		expect("warning", "Degraded: pod shop/a has been stuck since 00:00:05 UTC on 1 Jan (for 2.0 s).")
		if s := n.state(); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "shop/b") || s.Pods[0].State != "stuck" ||
			s.Pods[1].State != "failing" {
			t.Errorf("notes %q, pods %+v", s.Notes, s.Pods)
		}
		fail()
		n.pass(8 * time.Second) // by then, the other pods have been inspected
		expect("warning", "Degraded: pod shop/a has been stuck since 00:00:05 UTC on 1 Jan (for 12 s): repair or end it; ")
		// Lists were answered while a was stuck, so a does not block them.
		n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.Block(plegtest.GetPodStatus, b)
		n.pass(11 * time.Second)
		expect("warning", "Degraded: pod shop/b has blocked the lists since ")
		n.pass(4 * time.Minute)
		expect("error", "Not healthy: pod shop/b has blocked the lists since ")
		if notes := strings.Join(n.state().Notes, " "); !strings.Contains(notes, "pod shop/a has been stuck since ") {
			t.Errorf("notes %q", notes)
		}
	})
}

// If no pod can be inspected, the runtime must be restarted. Other pods are unaffected only if there
// are other pods, and lists succeed.
func TestStuckInspectionsInWords(t *testing.T) {
	for _, tt := range []struct {
		pods, stuck int
		after       time.Duration
		listsFail   bool // in the last seconds
		first, end  string
	}{
		{3, 3, 20 * time.Second, false, "Degraded: ", ": repair or end it, and 2 more pods are stuck."},
		{3, 3, 4 * time.Minute, false, "Not healthy: ",
			", and 2 more pods are stuck: restart the runtime; no pod can be inspected."},
		{3, 2, 4 * time.Minute, false, "Degraded: ",
			": repair or end it, and one more pod is stuck; other pods are not affected."},
		{1, 1, 4 * time.Minute, false, "Degraded: ", ": repair or end it."},
		{3, 1, 4 * time.Minute, true, "", ": repair or end it."},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.setPods(tt.pods)
			for i := range tt.stuck {
				uid := types.UID(fmt.Sprintf("team/pod-%04d", i))
				n.Block(plegtest.GetPodStatus, uid)
				n.ExitContainer(uid, fmt.Sprintf("container-%04d", i), 1, "Error")
			}
			n.pass(tt.after)
			if tt.listsFail {
				n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("oops"))
				n.pass(3 * time.Second)
			}
			c := plegz.NewCondition(n.g.HealthReport(), n.g.Clock().Now())
			sentence := c.Sentence
			if tt.listsFail {
				sentence = c.Notes[0]
			}
			if !strings.HasPrefix(sentence, tt.first+"pod team/pod-0000 has been stuck since ") ||
				!strings.HasSuffix(sentence, ")"+tt.end) || c.Sentence != n.state().Sentence {
				t.Errorf("%d of %d pods after %v: %s, notes %q", tt.stuck, tt.pods, tt.after, c.Sentence, c.Notes)
			}
			n.Heal()
		})
	}
}

// A pod whose inspections failed before is a problem, even while it is not yet known what its present
// inspection waits for.
func TestFailedBeforeItIsStuck(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Second)
	for failures, want := range map[int]string{
		0: "Healthy: 2 pods, the event stream is .",
		5: "Degraded: the inspection of pod shop/web has failed 5 times: broken.",
	} {
		web := pleg.FailingPod{Namespace: "shop", Name: "web", StuckSince: since, Failures: failures, Error: "broken"}
		report := pleg.HealthReport{
			Healthy: true, Pods: 2, LastRelist: since, LastAnswer: since, FailingPods: []pleg.FailingPod{web}}
		if s := plegz.NewCondition(report, now); s.Sentence != want {
			t.Errorf("%d failures: %+v", failures, s)
		}
	}
}

// If a pod is stuck and a note reports a problem of another pod, the sentence does not say that other pods
// are not affected.
func TestAffectedBesideAStuckPod(t *testing.T) {
	now := time.Now()
	since := now.Add(-20 * time.Second)
	web := pleg.FailingPod{Namespace: "shop", Name: "web", StuckSince: since}
	api := pleg.FailingPod{Namespace: "shop", Name: "api", Failures: 5, Error: "broken"}
	exit := pleg.UnconfirmedExit{Namespace: "shop", Name: "api", Container: "app", Since: since}
	for name, tt := range map[string]struct {
		failing []pleg.FailingPod
		exits   []pleg.UnconfirmedExit
		end     string
		notes   int
	}{
		"alone":              {nil, nil, ": repair or end it; other pods are not affected.", 0},
		"a failing pod":      {[]pleg.FailingPod{api}, nil, ": repair or end it.", 1},
		"an unconfirmed end": {nil, []pleg.UnconfirmedExit{exit}, ": repair or end it.", 1},
	} {
		c := plegz.NewCondition(pleg.HealthReport{Healthy: true, Pods: 3, LastRelist: now, LastAnswer: now,
			FailingPods: append(tt.failing, web), UnconfirmedExits: tt.exits}, now)
		if !strings.HasSuffix(c.Sentence, tt.end) || len(c.Notes) != tt.notes {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// If only one inspection is stuck and lists are slow or rare, no sentence says that the runtime answers
// nothing. If it really answers nothing, no sentence names the pod.
func TestFirstSecondsInWords(t *testing.T) {
	for _, tt := range []struct {
		frozen bool
		period time.Duration
		want   string
	}{
		{false, time.Second, "Degraded: pod team/pod-0001 has been stuck since "},
		{false, 3 * time.Second, "Degraded: pod team/pod-0001 has been stuck since "},
		{true, time.Second, "Degraded: nothing has been answered since "},
	} {
		synctest.Test(t, func(t *testing.T) {
			fake := plegtest.NewRuntime()
			n := newIdleNode(t, fake, fake)
			g := pleg.New(fake, pleg.WithRelistPeriod(tt.period), pleg.WithLogger(logr.Discard()))
			g.Start(t.Context())
			defer g.Stop()
			n.setPods(4)
			n.Delay(plegtest.GetPods, plegtest.AnyPod, 900*time.Millisecond)
			n.pass(5 * time.Second)
			n.BlockIgnoringCancel(plegtest.GetPodStatus, "team/pod-0001")
			n.ExitContainer("team/pod-0001", "container-0001", 1, "Error")
			if tt.frozen {
				n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
				n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
			}
			g.RequestReinspect("team/pod-0001")
			for range 500 {
				n.pass(10 * time.Millisecond)
				s := plegz.NewCondition(g.HealthReport(), time.Now())
				if s.Level != "ok" && !strings.HasPrefix(s.Sentence, tt.want) {
					t.Fatalf("%+v: %s", tt, s.Sentence)
				}
			}
			if s := plegz.NewCondition(g.HealthReport(), time.Now()); s.Level == "ok" {
				t.Errorf("%+v: %s", tt, s.Sentence)
			}
			n.Heal()
		})
	}
}

// While a list is stuck, the sentence names a stuck pod and counts the pods that were inspected
// since. It does not call other pods unaffected, because their new containers are not seen.
func TestStuckListInWords(t *testing.T) {
	const since = " since 00:00:03 UTC on 1 Jan (for 13 s)"
	const unseen = "; until a list is answered, pods that come or go may not be seen."
	const nothing = "nothing has been answered since 00:00:02 UTC on 1 Jan (for 14 s): restart the runtime."
	for _, tt := range []struct {
		stuck []types.UID // pods whose inspections are stuck
		first string      // how the sentence begins before the list counts as stuck
		want  string
	}{
		{nil, "", "Degraded: a container blocks the lists, and which one is not known: GetPods has not been answered" +
			since + "; 4 pods have been inspected since" + unseen},
		{
			[]types.UID{"team/pod-0001"}, "Degraded: pod team/pod-0001 has been stuck since ",
			"Degraded: pod team/pod-0001 has blocked the lists" + since +
				": repair or end it; 3 pods have been inspected since" + unseen,
		},
		{
			[]types.UID{"team/pod-0000", "team/pod-0001", "team/pod-0003"}, "Degraded: pod team/pod-000",
			": repair or end it, and 2 more pods are stuck; 1 pod has been inspected since" + unseen,
		},
		{
			[]types.UID{plegtest.AnyPod}, "Degraded: nothing has been answered since 00:00:02 UTC on 1 Jan (for 8.0 s).",
			"Degraded: " + nothing,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.setPods(4)
			n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
			n.BlockIgnoringCancel(plegtest.GetPod, plegtest.AnyPod)
			for _, uid := range tt.stuck {
				n.BlockIgnoringCancel(plegtest.GetPodStatus, uid)
			}
			n.pass(8 * time.Second)
			if s := n.state(); s.Level != "ok" && tt.first == "" || !strings.HasPrefix(s.Sentence, tt.first) ||
				strings.Contains(s.Sentence, "not affected") {
				t.Errorf("after 8 s: %s, want %s", s.Sentence, tt.first)
			}
			n.pass(6 * time.Second)
			frozen := strings.HasSuffix(tt.want, nothing)
			s := n.state()
			if !strings.HasSuffix(s.Sentence, tt.want) || s.AwaySince.IsZero() == frozen || len(s.Notes) > 0 {
				t.Errorf("after 14 s: %s, notes %q, away since %v, want %s", s.Sentence, s.Notes, s.AwaySince, tt.want)
			}
			// After four more minutes, the first list has reached its timeout of two minutes, and
			// the next list is stuck.
			n.pass(4 * time.Minute)
			reason := "reason: pleg was last seen active 4 min ago; threshold is 3 min: GetPods has been running for "
			if s = n.state(); !strings.HasPrefix(s.Sentence, "Not healthy: ") || s.AwaySince.IsZero() == frozen {
				t.Errorf("after 4 min: %s, away since %v", s.Sentence, s.AwaySince)
			}
			if all := s.Sentence + strings.Join(s.Notes, ""); strings.Count(all, "context deadline exceeded") > 1 ||
				frozen != strings.Contains(all, reason) {
				t.Errorf("after 4 min: %s, notes %q", s.Sentence, s.Notes)
			}
			n.Heal()
		})
	}
}

// If the runtime answers nothing, the sentence says that it must be started or restarted, and contains the
// error once. If the error shows that it listens, it must be restarted.
func TestSilentRuntime(t *testing.T) {
	for _, tt := range []struct {
		wasUp  bool
		err    error
		advice string
	}{
		{false, errors.New("connection refused"), "start or restart the runtime (connection refused)."},
		{true, errors.New("connection refused"), "start or restart the runtime (connection refused)."},
		{false, errors.New(healthreport.Accepts), "restart the runtime (" + healthreport.Accepts + ")."},
	} {
		synctest.Test(t, func(t *testing.T) {
			runtime := plegtest.NewRuntime()
			n := newIdleNode(t, runtime, runtime)
			want := "Not healthy: nothing has been answered since 00:00:00 UTC on 1 Jan (for 20 s): " + tt.advice
			if tt.wasUp {
				n.g.Start(t.Context())
				n.pass(5 * time.Second)
				want = "Degraded: nothing has been answered since 00:00:05 UTC on 1 Jan (for 20 s): " + tt.advice
			}
			n.Fail(plegtest.GetPods, plegtest.AnyPod, tt.err)
			n.g.Start(t.Context()) // a second Start changes nothing
			n.pass(5 * time.Second)
			if s := n.state(); strings.Contains(s.Sentence, "start the runtime") {
				t.Errorf("advice after 5 s: %s", s.Sentence)
			}
			n.pass(15 * time.Second)
			if s := n.state(); s.Sentence != want || len(s.Notes) > 0 || s.AwaySince.IsZero() {
				t.Errorf("%s, notes %q, away since %v, want %s", s.Sentence, s.Notes, s.AwaySince, want)
			}
		})
	}
}

// A name or a text of the runtime that looks like a duration stays as it is.
func TestNamesLikeDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "cron-1m30s", plegtest.Running("3s"))
		n.pass(time.Second)
		n.Fail(plegtest.GetPodStatus, uid, errors.New("ContainerStatus of container 3s took 90s"))
		n.ExitContainer(uid, "3s", 1, "Error")
		n.pass(5 * time.Second)
		if s := n.state(); !strings.HasPrefix(s.Sentence, "Degraded: the inspection of pod shop/cron-1m30s has failed ") ||
			!strings.HasSuffix(s.Sentence, ": ContainerStatus of container 3s took 90s.") {
			t.Error(s.Sentence)
		}
	})
}

// unanswered is a runtime that has never answered.
type unanswered struct{ *plegtest.Runtime }

func (unanswered) CallsInFlight() ([]pleg.RuntimeCall, time.Time) { return nil, time.Time{} }

// If an agent starts while the runtime is frozen, its lists fail after seconds. The sentence always
// says since the agent's start, during each list and between them.
func TestStartDuringAFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		n := newIdleNode(t, unanswered{runtime}, runtime)
		n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 5 * time.Second, Err: errors.New("connection timed out")})
		began := time.Now()
		n.g.Start(t.Context())
		n.pass(1500 * time.Millisecond)
		frozen := 0
		for range 60 {
			n.pass(500 * time.Millisecond)
			s := n.state()
			if r := s.Health.StuckRelist; r != nil && r.Frozen {
				frozen++
			}
			if !strings.HasPrefix(s.Sentence, "Not healthy: nothing has been answered since at least 00:00:00 UTC ") ||
				!s.AwaySince.Equal(began) {
				t.Errorf("after %v: %s, away since %v", time.Since(began), s.Sentence, s.AwaySince)
			}
		}
		if frozen == 0 || frozen == 60 {
			t.Errorf("frozen in %d of 60 reports", frozen)
		}
	})
}

// If there is no worse problem, the sentence names the oldest unconfirmed exit. The container is
// shown as exited and unconfirmed until the runtime's status confirms the exit.
func TestUnconfirmedExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(60)
		exited := func(i, code int) {
			n.EmitExit(pleg.ContainerExit{ContainerID: fmt.Sprintf("container-%04d", i), ExitCode: code, FinishedAt: time.Now()})
			n.pass(time.Second)
		}
		exited(7, 137)
		n.pass(41 * time.Second)
		const oldest = "container container-0007 of pod team/pod-0007 exited 42 s ago (code 137)"
		s := n.state()
		if s.Sentence != "Degraded: "+oldest+"; the runtime has not confirmed it." {
			t.Error(s.Sentence)
		}
		if p := s.Pods[7]; p.State != "crashed" || p.Containers[0].State != "exited" || !p.Containers[0].Unconfirmed {
			t.Errorf("%+v", p)
		}
		n.expectLines("team/pod-0007 +crashed +container-0007 +container-00 +exited, exit 137, unconfirmed +0 +42 s +Error")
		exited(3, 0)
		n.pass(time.Second)
		const two = " (code 137), and one more has exited; the runtime has not confirmed it."
		if s := n.state().Sentence; !strings.HasSuffix(s, two) {
			t.Error(s)
		}
		for i := 8; i < 60; i++ {
			exited(i, 1)
		}
		n.Fail(plegtest.GetPodStatus, "team/pod-0000", errors.New("no such task"))
		n.ExitContainer("team/pod-0000", "container-0000", 1, "Error")
		n.pass(2 * time.Second)
		s = n.state()
		if !strings.HasPrefix(s.Sentence, "Degraded: the inspection of pod team/pod-0000 has failed ") || len(s.Notes) != 1 ||
			!strings.HasSuffix(s.Notes[0], ", and 53 more have exited; the runtime has not confirmed it.") {
			t.Errorf("%s %q", s.Sentence, s.Notes)
		}
		if exits := s.Health.UnconfirmedExits; len(exits) != 50 || exits[0].ContainerID != "container-0003" {
			t.Errorf("%d in the report, the first of %s", len(exits), exits[0].ContainerID)
		}
		n.Heal()
		for i := range 60 {
			n.ExitContainer(types.UID(fmt.Sprintf("team/pod-%04d", i)), fmt.Sprintf("container-%04d", i), 137, "OOMKilled")
		}
		n.pass(20 * time.Second)
		s = n.state()
		if l := s.Pods[7].Containers[0]; s.Level != "ok" || l.Unconfirmed || l.Reason != "OOMKilled" {
			t.Errorf("%s %+v", s.Sentence, l)
		}
	})
}

// If a container is removed before the runtime's status confirms its exit, its exit no longer
// counts as unconfirmed.
func TestUnconfirmedExitIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(1)
		n.get("/")
		n.EmitExit(pleg.ContainerExit{ContainerID: "container-0000", ExitCode: 2, FinishedAt: time.Now()})
		n.pass(3 * time.Second)
		if !n.state().Pods[0].Containers[0].Unconfirmed {
			t.Error("it is not unconfirmed before")
		}
		n.RemoveContainer("team/pod-0000", "container-0000")
		n.pass(2 * time.Second)
		s := n.state()
		if l := s.Pods[0].Containers[0]; l.State != "removed" || *l.ExitCode != 2 || l.Unconfirmed || s.Level != "ok" {
			t.Errorf("%s %+v", s.Sentence, l)
		}
	})
}

// If the exit stream is broken, the sentence reports that.
func TestBrokenExitStreamInWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.pass(time.Second)
		n.BreakExitStreams(errors.New("EOF"))
		synctest.Wait()
		const broken = "Degraded: the exit stream has not been connected since at least 00:00:01 UTC on 1 Jan " +
			"(last attempt: EOF); exits are found as other changes are."
		if s := n.state(); s.Sentence != broken || s.Health.ExitStream.State != pleg.StreamBroken {
			t.Error(s.Sentence)
		}
		n.expectLines("exit stream +broken")
	})
}

// With many stuck calls, the health in the answer stays short. Each pod still shows its own state.
func TestManyStuckPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := plegtest.NewRuntime()
		r := &reporter{Runtime: fake}
		for i := range 200 {
			r.calls = append(r.calls, pleg.RuntimeCall{
				Method: "ContainerStatus", PodUID: types.UID(fmt.Sprintf("team/pod-%04d", i)),
				Object: "container app (3f2a61d0c9b84…)", ObjectID: strings.Repeat("3f2a", 16), Since: time.Now(),
			})
		}
		n := newIdleNode(t, r, fake)
		n.g.Start(t.Context())
		n.setPods(200)
		n.get("/")
		n.Block(plegtest.GetPodStatus, plegtest.AnyPod)
		for i := range 200 {
			n.ExitContainer(types.UID(fmt.Sprintf("team/pod-%04d", i)), fmt.Sprintf("container-%04d", i), 1, "Error")
		}
		n.pass(500 * time.Millisecond) // the exits are listed, and no other list is answered
		n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.pass(72 * time.Second)
		last := n.state().Position
		s := n.open("/?format=stream&since="+last, "")
		n.pass(3 * time.Second)
		for len(s.messages) > 0 {
			var m struct{ Health json.RawMessage }
			_, data, _ := bytes.Cut(<-s.messages, []byte("data: "))
			if err := json.Unmarshal(data, &m); err != nil || len(m.Health) > 30_000 {
				t.Errorf("%d bytes about the health, %v", len(m.Health), err)
			}
		}
		now, stuck := n.state(), 0
		if r := now.Health.StuckRelist; r == nil || len(r.Suspects) != 50 {
			t.Errorf("the stuck list: %+v", r)
		}
		for _, p := range now.Pods {
			if p.State == "stuck" {
				stuck++
			}
		}
		if stuck < 60 {
			t.Errorf("%d pods are stuck", stuck)
		}
		n.Heal()
	})
}

// The sentence counts the failing pods. The notes and the text report the other problems. The text
// also reports the backlog of the subscribers.
func TestNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(3)
		n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		for i, name := range []string{"team/pod-0000", "team/pod-0001"} {
			n.Fail(plegtest.GetPodStatus, types.UID(name), errors.New("no such task"))
			n.ExitContainer(types.UID(name), fmt.Sprintf("container-%04d", i), 1, "Error")
			n.pass(3 * time.Second) // so that the first pod has more failures than the second
		}
		n.pass(10 * time.Second)
		n.BreakEventStreams(errors.New("EOF"))
		synctest.Wait()
		s := n.state()
		const failing = "Degraded: the inspection of pod team/pod-0000 has failed "
		const why = ", and one more pod fails: no such task."
		if !strings.HasPrefix(s.Sentence, failing) || !strings.HasSuffix(s.Sentence, why) {
			t.Error(s.Sentence)
		}
		const broken = "the event stream has not been connected since 00:00:18 UTC on 1 Jan (last attempt: EOF); " +
			"changes are found by the next relist."
		if len(s.Notes) != 1 || s.Notes[0] != broken {
			t.Errorf("%q", s.Notes)
		}
		text := n.get("/").Body.String()
		for _, line := range []string{
			`\nThe event stream has not been connected since `, `\nsubscriptions +1, 3 pods behind\n`,
		} {
			if !regexp.MustCompile(line).MatchString(text) {
				t.Errorf("no %s in\n%s", line, text)
			}
		}
	})
}

// reporter is a runtime that reports calls in flight.
type reporter struct {
	*plegtest.Runtime
	calls []pleg.RuntimeCall
}

func (r *reporter) CallsInFlight() ([]pleg.RuntimeCall, time.Time) { return r.calls, time.Now() }

// If the runtime reports a call in flight for a stuck pod, the sentence names the object of that
// call. Between two attempts, it names the object of the failed call.
func TestStuckCallOfTheRuntime(t *testing.T) {
	for want, calls := range map[string][]pleg.RuntimeCall{
		"container a (x) of pod shop/a": {
			{Method: "Version"}, {Method: "ListContainers", PodUID: "shop/a"},
			{Method: "ContainerStatus", PodUID: "shop/a", Object: "container a (x)", ObjectID: "x"}},
		"pod shop/a": nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			fake := plegtest.NewRuntime()
			for i := range calls {
				calls[i].Since = time.Now()
			}
			n := newIdleNode(t, &reporter{fake, calls}, fake)
			a := n.setPod("shop", "a", plegtest.Running("a"))
			n.Block(plegtest.GetPodStatus, a)
			n.g.Start(t.Context())
			n.pass(3 * time.Second)
			if s := n.state().Sentence; !strings.HasPrefix(s, "Degraded: "+want+" has been stuck since ") {
				t.Errorf("%s, want %s", s, want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		fake := plegtest.NewRuntime()
		n := newIdleNode(t, naming{fake}, fake)
		a := n.setPod("shop", "a", plegtest.Running("a"))
		n.setPod("shop", "b", plegtest.Running("b"))
		n.g.Start(t.Context())
		n.pass(time.Second)
		n.Block(plegtest.GetPodStatus, a)
		n.g.RequestReinspect(a)
		n.pass(pleg.DefaultRuntimeRequestTimeout + 10*time.Second)
		for range 3000 {
			n.pass(100 * time.Millisecond)
			c := plegz.NewCondition(n.g.HealthReport(), n.g.Clock().Now())
			if !strings.HasPrefix(c.Sentence, "Degraded: container a (a) of pod shop/a has been stuck since ") {
				t.Fatal(c.Sentence)
			}
		}
		n.Heal()
		n.pass(time.Minute)
		n.Fail(plegtest.GetPodStatus, a, errors.New("no such task"))
		n.g.RequestReinspect(a)
		n.pass(3 * time.Second)
		if body := n.get("/?format=json").Body.String(); !strings.Contains(body, `"containerID": "a"`) {
			t.Error("the failed inspection names no container:", body)
		}
	})
}

// naming is a runtime whose errors name the failed call.
type naming struct{ *plegtest.Runtime }

func (r naming) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	status, err := r.Runtime.GetPodStatus(ctx, pod)
	if err != nil {
		id := pod.Containers[0].ID.ID
		err = &callError{err, pleg.RuntimeCall{
			Method: "ContainerStatus", PodUID: pod.ID, Object: "container " + id + " (" + id + ")", ObjectID: id,
		}}
	}
	return status, err
}

type callError struct {
	error
	call pleg.RuntimeCall
}

func (e *callError) Call() *pleg.RuntimeCall { return &e.call }

// If an agent starts while two containers are stuck, the sentence names the first one and counts the
// other. It says that the problem may be older than the agent.
func TestStuckContainersThatNoListHasShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := plegtest.NewRuntime()
		calls := []pleg.RuntimeCall{
			{Method: "ContainerStatus", Object: "container shop/a/app (x)", ObjectID: "x", Since: time.Now()},
			{Method: "ContainerStatus", Object: "container shop/b/app (y)", ObjectID: "y", Since: time.Now()},
			{Method: "ContainerStatus", Object: "container shop/c/app (z)", ObjectID: "z", Since: time.Now().Add(time.Hour)},
		}
		n := newIdleNode(t, &reporter{fake, calls}, fake)
		n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.g.Start(t.Context())
		n.pass(12 * time.Second)
		const want = "Not healthy: container shop/a/app (x) has blocked the lists since at least 00:00:00 UTC on 1 Jan " +
			"(for 12 s): repair or end it, and one more container is stuck; "
		if s := n.state().Sentence; !strings.HasPrefix(s, want) {
			t.Errorf("%s\nwant %s", s, want)
		}
		body := n.get("/?format=json").Body.String()
		if !strings.Contains(body, `"name": "a",`) || !strings.Contains(body, `"container": "app",`) {
			t.Error("the call names neither pod nor container:", body)
		}
	})
}
