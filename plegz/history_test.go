package plegz_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// The history has a maximum size. The field goneThrough of the answer shows clients which removed
// items to forget.
func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, plegz.WithHistory(20))
		n.get("/")
		for i := range 60 {
			uid := n.setPod("jobs", fmt.Sprint("job-", i), plegtest.Running(fmt.Sprint("job-", i)))
			n.pass(time.Second)
			n.ExitContainer(uid, fmt.Sprint("job-", i), 0, "Completed")
			n.pass(time.Second)
			n.RemovePod(uid)
			n.pass(time.Second)
		}
		s := n.state()
		lives := 0
		for _, p := range s.Pods {
			lives += len(p.Containers) + len(p.Sandboxes) + 1
			if p.State != "removed" || p.Gone <= s.GoneThrough {
				t.Errorf("%+v, forgotten is %d", p, s.GoneThrough)
			}
			for _, c := range p.Containers {
				if c.ExitCode == nil || *c.ExitCode != 0 || c.Reason != "Completed" || c.RemovedAt.IsZero() ||
					c.Gone <= s.GoneThrough {
					t.Errorf("container %+v of %s, forgotten is %d", c, p.Name, s.GoneThrough)
				}
			}
		}
		if lives != 20 || len(s.Events) != 20 || s.GoneThrough == 0 {
			t.Errorf("%d lives, %d events, forgotten through %d", lives, len(s.Events), s.GoneThrough)
		}
	})
}

// The answer shows a new container before any event about it. It also shows a death before the
// event of the death, which a stuck inspection delays.
func TestShowsWhatHasNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		a := n.setPod("shop", "a", plegtest.Running("a"))
		n.pass(time.Second)
		n.get("/")
		n.Block(plegtest.GetPodStatus, a)
		n.ExitContainer(a, "a", 1, "Error")
		n.setPod("shop", "b", plegtest.Created("b"))
		n.pass(3 * time.Second)
		s := n.state()
		if len(s.Pods) != 2 || s.Pods[0].Containers[0].State != "exited" || s.Pods[0].Containers[0].FinishedAt.IsZero() ||
			s.Pods[1].State != "starting" || s.Pods[1].Containers[0].State != "created" {
			t.Errorf("%+v", s.Pods)
		}
	})
}

// A removed pod that is listed again with the same UID is shown as present again.
func TestPodComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("kube-system", "static", plegtest.Running("one"))
		n.pass(time.Second)
		n.get("/")
		n.RemovePod(uid)
		n.pass(2 * time.Second)
		if s := n.state(); s.Pods[0].State != "removed" {
			t.Errorf("%+v", s.Pods)
		}
		n.setPod("kube-system", "static", plegtest.Running("two"))
		n.pass(2 * time.Second)
		s := n.state()
		if len(s.Pods) != 1 || s.Pods[0].State != "running" || s.Pods[0].Gone != 0 || len(s.Pods[0].Containers) != 2 ||
			s.Pods[0].Containers[0].Name != "two" || s.Pods[0].Containers[1].State != "removed" {
			t.Errorf("%+v", s.Pods)
		}
	})
}

// Present pods come before removed ones. Removed pods with the same name are sorted, last removed
// first.
func TestPresentPodsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.get("/")
		// A static pod gets a new UID with each change of its manifest.
		for _, uid := range []types.UID{"c", "a", "b"} {
			p := plegtest.NewPod(uid, plegtest.Running("etcd-"+string(uid)))
			p.Namespace, p.Name = "kube-system", "etcd"
			n.SetPod(p)
			n.setPod("jobs", string(uid), plegtest.Running("job-"+string(uid)))
			n.pass(2 * time.Second)
			if uid != "b" {
				n.RemovePod(uid)
				n.RemovePod("jobs/" + uid)
			}
			n.pass(2 * time.Second)
		}
		var got []string
		for _, p := range n.state().Pods {
			got = append(got, p.UID)
		}
		if want := []string{"jobs/b", "b", "jobs/a", "jobs/c", "a", "c"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A list can show that a container has ended before the event of the death is read. The event then
// does not report the end a second time, but adds the exit code.
func TestEventAfterWhatItTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gathering, goOn := make(chan bool), make(chan bool)
		gathered := 0
		slow := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slow", Help: "Slow."}, func() float64 {
			// The second call blocks. Until goOn is closed, the recorder reads no event.
			if gathered++; gathered == 2 {
				close(gathering)
				<-goOn
			}
			return 0
		})
		n := newMeasuredNode(t, slow)
		a := n.setPod("shop", "a", plegtest.Running("one"), plegtest.Running("two"))
		b := n.setPod("shop", "b", plegtest.Running("three"))
		n.pass(time.Second)
		n.get("/")
		<-gathering
		n.ExitContainer(a, "one", 7, "Error")
		n.pass(10 * time.Millisecond)
		n.RemoveContainer(a, "one")
		n.RemovePod(b)
		n.pass(10 * time.Millisecond)
		close(goOn)
		synctest.Wait()
		gone := func(p viewedPod) (container, sandbox, pod uint64) {
			l := p.Containers[len(p.Containers)-1]
			if l.State != "removed" || l.RemovedAt.IsZero() {
				t.Errorf("%+v", l)
			}
			if len(p.Sandboxes) > 0 {
				sandbox = p.Sandboxes[0].Gone
			}
			return l.Gone, sandbox, p.Gone
		}
		before := n.state()
		n.pass(2 * time.Second)
		after := n.state()
		if len(after.Pods) != 2 || len(after.Pods[0].Containers) != 2 || len(after.Pods[1].Containers) != 1 {
			t.Fatalf("%+v", after.Pods)
		}
		for i := range after.Pods {
			c1, s1, p1 := gone(before.Pods[i])
			c2, s2, p2 := gone(after.Pods[i])
			if c1 != c2 || s1 != s2 || p1 != p2 {
				t.Errorf("reported twice: %+v, then %+v", before.Pods[i], after.Pods[i])
			}
		}
		if one := after.Pods[0].Containers[1]; one.ExitCode == nil || *one.ExitCode != 7 {
			t.Errorf("%+v", one)
		}
	})
}

// The state of a pod is computed from its containers and its sandbox.
func TestPodStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		exited := func(id string, code int) func() {
			return func() { n.ExitContainer("shop/"+types.UID(id), id, code, "") }
		}
		for _, tt := range []struct {
			name, want string
			containers []*pleg.Container
			then       func()
		}{
			{"none", "starting", nil, nil},
			{"created", "starting", []*pleg.Container{plegtest.Created("created")}, nil},
			{"unknown", "starting", []*pleg.Container{plegtest.Unknown("unknown")}, nil},
			{"runs", "running", []*pleg.Container{plegtest.Running("runs")}, nil},
			{"done", "completed", []*pleg.Container{plegtest.Running("done")}, exited("done", 0)},
			{"forgotten", "unknown", []*pleg.Container{plegtest.Running("forgotten"), plegtest.Running("known")}, func() {
				exited := func(id string, unknown bool) *pleg.Status {
					return &pleg.Status{ID: plegtest.Running(id).ID, Name: id, State: pleg.ContainerStateExited, EndUnknown: unknown,
						FinishedAt: time.Now()}
				}
				n.SetStatus("shop/forgotten", &pleg.PodStatus{ID: "shop/forgotten",
					ContainerStatuses: []*pleg.Status{exited("forgotten", true), exited("known", false)}})
				n.SetContainer("shop/forgotten", "forgotten", pleg.ContainerStateExited)
				n.SetContainer("shop/forgotten", "known", pleg.ContainerStateExited)
			}},
			{"crash", "crashed", []*pleg.Container{plegtest.Running("crash"), plegtest.Running("beside")}, exited("crash", 1)},
			{"init", "running", []*pleg.Container{plegtest.Running("main"), plegtest.Running("init")}, exited("init", 0)},
			{"late", "completed", []*pleg.Container{plegtest.Running("late")}, func() {
				exited("late", 0)()
				n.pass(5 * time.Second)
				n.Fail(plegtest.GetPodStatus, "shop/late", errors.New("the runtime is away"))
				n.g.RequestReinspect("shop/late")
			}},
			{"fails", "failing", []*pleg.Container{plegtest.Running("fails")}, func() {
				n.Fail(plegtest.GetPodStatus, "shop/fails", errors.New("the runtime is away"))
				n.g.RequestReinspect("shop/fails")
			}},
			{"stop", "stopped", []*pleg.Container{plegtest.Running("stop")}, func() {
				n.ExitContainer("shop/stop", "stop", 1, "")
				n.SetSandbox("shop/stop", "shop/stop-sandbox", pleg.ContainerStateExited)
			}},
		} {
			n.setPod("shop", tt.name, tt.containers...)
			n.pass(time.Second)
			if tt.then != nil {
				tt.then()
			}
			n.pass(2 * time.Second)
			pods := n.state().Pods
			i := slices.IndexFunc(pods, func(p viewedPod) bool { return p.Name == tt.name })
			if i < 0 || pods[i].State != tt.want {
				t.Errorf("%s: want %s in %+v", tt.name, tt.want, pods)
			}
		}
		n.expectLines("shop/forgotten +unknown +forgotten +forgotten +exited, code unknown +0 +at least [0-9.]+ s .*",
			"shop/late +completed +late +late +exited, exit 0 .*")
	})
}

// The answer contains a pod's creation time and the first 50 of its addresses.
func TestPodDetail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(false) // otherwise the pod might be inspected before SetStatus
		made := time.Date(1999, 12, 31, 23, 59, 59, 5, time.UTC)
		p := plegtest.NewPod("a", plegtest.Running("a"))
		p.CreatedAt = uint64(made.UnixNano()) //nolint:gosec // after 1970
		n.SetPod(p)
		ips := []string{"10.0.0.1", strings.Repeat("x", 5000)}
		for i := range 100 {
			ips = append(ips, fmt.Sprint("fd00::", i))
		}
		n.SetStatus("a", &pleg.PodStatus{ID: "a", IPs: ips})
		n.pass(time.Second)
		got := n.state().Pods[0]
		if !got.CreatedAt.Equal(made) || len(got.IPs) != 50 || got.IPs[0] != "10.0.0.1" || len(got.IPs[1]) > 1100 {
			t.Errorf("%+v", got)
		}
	})
}

// A stuck container changes the level. The answer still contains this change after the container
// answers again. The conditions that an earlier agent recorded come first.
func TestLevelsAndThePastStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now().Add(-time.Hour)
		died := plegz.Event{Time: before, Pod: "gone", PodUID: "gone", Event: pleg.ContainerDied, Reason: "OOMKilled"}
		n := newNode(t, plegz.WithPast([]plegz.Event{died}, []plegz.PastCondition{
			{Time: before, Condition: plegz.Condition{Level: plegz.LevelError, Sentence: "Not healthy: the past."}},
		}))
		a := n.setPod("shop", "a", plegtest.Running("a"))
		n.pass(time.Second)
		n.get("/")
		heal := n.Block(plegtest.GetPodStatus, a)
		n.ExitContainer(a, "a", 1, "Error")
		n.pass(20 * time.Second)
		heal()
		n.pass(5 * time.Second)
		s := n.state()
		var levels []plegz.Level
		for _, l := range s.Conditions {
			levels = append(levels, l.Level)
		}
		want := []plegz.Level{plegz.LevelError, plegz.LevelOK, plegz.LevelWarning, plegz.LevelOK}
		if !slices.Equal(slices.Compact(levels), want) || // a level may have several sentences
			!strings.Contains(s.Conditions[len(s.Conditions)-2].Sentence, "shop/a has been stuck") {
			t.Errorf("%+v", s.Conditions)
		}
		if len(s.Events) < 2 || s.Events[0].Reason != "OOMKilled" || s.Events[1].Pod != "a" {
			t.Errorf("%+v", s.Events)
		}
		if text := n.get("/?format=text").Body.String(); !strings.Contains(text, "Not healthy: the past.") {
			t.Error(text)
		}
	})
}

// An agent starts while the lists are blocked. It says since when an earlier agent saw problems, until a
// list succeeds. Its own start is not remembered as a problem.
func TestThePastTroubleIsNamed(t *testing.T) {
	condition := func(minute int, level plegz.Level, sentence string) plegz.PastCondition {
		return plegz.PastCondition{Time: time.Date(1999, 12, 31, 23, minute, 0, 0, time.UTC),
			Condition: plegz.Condition{Level: level, Sentence: sentence}}
	}
	synctest.Test(t, func(t *testing.T) {
		const note = "an earlier agent saw problems since 23:20:00 UTC on 31 Dec, at last: Not healthy: b."
		for _, test := range []struct {
			past []plegz.PastCondition
			want []string
		}{
			{past: []plegz.PastCondition{
				condition(10, plegz.LevelOK, "Healthy."), condition(20, plegz.LevelWarning, "Degraded: a."),
				condition(30, plegz.LevelError, "Not healthy: b (for 3 min)."),
			}, want: []string{note}},
			{past: []plegz.PastCondition{
				condition(10, plegz.LevelError, "Not healthy: a."), condition(20, plegz.LevelOK, "Healthy."),
			}},
		} {
			fake := plegtest.NewRuntime()
			n := newIdleNode(t, fake, fake, plegz.WithPast(nil, test.past), plegz.WithRecording(t.Context()))
			heal := n.Block(plegtest.GetPods, plegtest.AnyPod)
			n.g.Start(t.Context())
			synctest.Wait()
			if s := n.state(); !slices.Equal(s.Notes, test.want) || len(s.Conditions) != len(test.past) {
				t.Errorf("%q, %+v", s.Notes, s.Conditions)
			}
			n.pass(3 * time.Second)
			if s := n.state(); !slices.Equal(s.Notes, test.want) || len(s.Conditions) == len(test.past) {
				t.Errorf("%q, %+v", s.Notes, s.Conditions)
			}
			heal()
			n.pass(2 * time.Second)
			if s := n.state(); s.Level != "ok" || len(s.Notes) > 0 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// If many pods are gone, the answer contains the newest 100 of them.
func TestGonePodsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.get("/")
		for i := range 150 {
			uid := n.setPod("jobs", fmt.Sprintf("job-%03d", i), plegtest.Running("job"))
			n.pass(2 * time.Second)
			n.RemovePod(uid)
			n.pass(2 * time.Second)
			n.get("/")
		}
		s := n.state()
		if len(s.Pods) != 100 || s.Pods[0].Name != "job-050" {
			t.Errorf("%d pods, the first is %+v", len(s.Pods), s.Pods[0])
		}
	})
}

// If the runtime has forgotten an end, the answer takes it from the past, also after the container is
// removed. An end of another life of the same container is not taken. Without an end in the past, the
// code is missing.
func TestForgottenEndsComeFromThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code, started, ended := 137, time.Now(), time.Now().Add(time.Second)
		end := func(id string, started time.Time) plegz.Event {
			return plegz.Event{
				Time: ended, ContainerID: id, Event: pleg.ContainerDied, StartedAt: started, FinishedAt: ended, ExitCode: &code,
				Reason: "OOMKilled",
			}
		}
		past := []plegz.Event{
			end("same", started), end("unstarted", time.Time{}), end("other", started.Add(-time.Hour)),
			end("earlier", time.Time{}),
		}
		past[3].FinishedAt = started.Add(-time.Hour)
		past = append(past, make([]plegz.Event, 10)...) // the page shows only these
		n := newNode(t, plegz.WithPast(past, nil), plegz.WithHistory(10), plegz.WithRecording(t.Context()))
		ids := []string{"same", "unstarted", "other", "earlier", "never"}
		status := &pleg.PodStatus{ID: "shop/a"}
		var containers []*pleg.Container
		for _, id := range ids {
			c := plegtest.Running(id)
			c.State = pleg.ContainerStateExited
			containers = append(containers, c)
			status.ContainerStatuses = append(status.ContainerStatuses, &pleg.Status{
				ID: c.ID, Name: id, State: c.State, StartedAt: started, FinishedAt: ended.Add(time.Minute), ExitCode: 255,
				Reason: "Unknown", EndUnknown: true,
			})
		}
		n.SetStatus("shop/a", status)
		n.setPod("shop", "a", containers...)
		for _, removed := range []bool{false, true} {
			if removed {
				n.RemovePod("shop/a")
			}
			n.pass(5 * time.Second)
			pod := n.state().Pods[0]
			if pod.Gone > 0 != removed || len(pod.Containers) != len(ids) {
				t.Fatalf("%+v", pod)
			}
			for _, c := range pod.Containers {
				switch c.ID {
				case "same", "unstarted":
					if c.ExitCode == nil || *c.ExitCode != 137 || c.Reason != "OOMKilled" || !c.FinishedAt.Equal(ended) ||
						!strings.Contains(c.Message, "history") {
						t.Errorf("%+v", c)
					}
				default:
					if c.ExitCode != nil || c.Reason != "Unknown" || c.FinishedAt.Equal(ended) || c.Message != "" {
						t.Errorf("%+v", c)
					}
				}
			}
		}
	})
}

// The first sentence of a level keeps its time. A later sentence has its own time. It replaces a
// later sentence that is less than ten seconds old.
func TestSentencesHaveTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var past []plegz.PastCondition
		began := time.Now().Add(-time.Hour)
		for i, at := range []time.Duration{0, 1, 4, 20, 25} {
			past = append(past, plegz.PastCondition{
				Time:      began.Add(at * time.Second),
				Condition: plegz.Condition{Level: plegz.LevelError, Sentence: "abcde"[i : i+1]},
			})
		}
		var got []string
		for _, c := range newNode(t, plegz.WithPast(nil, past)).state().Conditions[:3] {
			got = append(got, fmt.Sprint(c.Sentence, c.Time.Sub(began)))
		}
		if want := []string{"a0s", "c4s", "e25s"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
