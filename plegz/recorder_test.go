package plegz_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

func (n *node) subscribers() int { return n.g.HealthReport().Subscribers }

// Nothing is subscribed before the first request, nor ten minutes after the last, nor after
// Stop; the next request begins anew.
func TestRecordsWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.pass(time.Minute)
		n.get("/?format=html")
		n.get("/nothing")
		synctest.Wait()
		if got := n.subscribers(); got != 0 {
			t.Errorf("%d subscribers before anybody asked", got)
		}
		n.get("/")
		n.pass(9 * time.Minute)
		n.ExitContainer(uid, "nginx", 1, "Error")
		n.pass(time.Second)
		if s := n.state(); len(s.Events) != 1 || s.Events[0].Event != "ContainerDied" || *s.Events[0].ExitCode != 1 {
			t.Errorf("9 minutes after the first request: %+v", s.Events)
		}
		n.pass(9 * time.Minute)
		if got := n.subscribers(); got != 1 {
			t.Errorf("%d subscribers 9 minutes after a request", got)
		}
		n.pass(2 * time.Minute)
		if got := n.subscribers(); got != 0 {
			t.Errorf("%d subscribers 11 minutes after the last request", got)
		}
		if s := n.state(); len(s.Events) != 0 || len(s.Pods) != 1 || s.Pods[0].State != "crashed" {
			t.Errorf("anew: %+v", s)
		}
		n.g.Stop()
		synctest.Wait()
		if got := n.subscribers(); got != 0 {
			t.Errorf("%d subscribers after Stop", got)
		}
	})
}

// A stream is a request that goes on: it is sent what changes, and history is recorded for
// it, over a Stop and a Start too.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		for i := range 3 {
			n.setPod("shop", fmt.Sprint("other-", i), plegtest.Running(fmt.Sprint("other-", i)))
		}
		n.pass(time.Second)
		s := n.open("/?format=stream", "")
		synctest.Wait()
		first := message(t, s)
		if !first.Full || len(first.Pods) != 4 || s.header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("first: %+v, %v", first, s.header)
		}
		n.pass(20 * time.Minute)
		drain(s)
		n.ExitContainer(uid, "nginx", 137, "OOMKilled")
		n.pass(300 * time.Millisecond) // a death shows within a second
		var died bool
		for len(s.messages) > 0 {
			m := message(t, s)
			if m.Full || len(m.Pods) > 1 || len(m.Samples) > 1 {
				t.Errorf("not only what has changed: %+v", m)
			}
			for _, e := range m.Events {
				died = died || e.Event == "ContainerDied" && e.Reason == "OOMKilled"
			}
		}
		if !died {
			t.Error("no death within 300 ms")
		}
		n.g.Stop()
		n.g.Start()
		n.pass(2 * time.Second)
		drain(s)
		n.RemovePod(uid)
		n.pass(2 * time.Second)
		var removed bool
		for len(s.messages) > 0 {
			for _, p := range message(t, s).Pods {
				removed = removed || p.Name == "web" && p.State == "removed" && *p.Containers[0].ExitCode == 137
			}
		}
		if !removed {
			t.Error("nothing after Stop and Start")
		}
	})
}

// A client that comes back gets what has changed since, unless that is not known any more.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		web := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.setPod("shop", "db", plegtest.Running("postgres"))
		n.pass(time.Second)
		s := n.open("/?format=stream", "")
		synctest.Wait()
		last := message(t, s)
		s.end()
		n.ExitContainer(web, "nginx", 1, "Error")
		n.pass(5 * time.Second)
		for _, resumed := range []*stream{
			n.open("/?format=stream", last.Position), n.open("/?format=stream&since="+last.Position, ""),
		} {
			synctest.Wait()
			m := message(t, resumed)
			if m.Full || len(m.Pods) != 1 || m.Pods[0].Name != "web" || len(m.Events) != 1 || len(m.Samples) != 5 {
				t.Errorf("resumed: %+v", m)
			}
		}
		for _, unknown := range []string{"x", "x.1", ".", last.Position + "0000", "-1", strings.Repeat("9", 1000),
			strings.Split(last.Position, ".")[0] + ".-1"} {
			resumed := n.open("/?format=stream", unknown)
			synctest.Wait()
			if m := message(t, resumed); !m.Full || len(m.Pods) != 2 {
				t.Errorf("position %.20q: %+v", unknown, m)
			}
		}
	})
}

// The call that hangs is named, since when and for which pod; so is a failure, and a list.
func TestSentence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		a, b := n.setPod("shop", "a", plegtest.Running("a")), n.setPod("shop", "b", plegtest.Running("b"))
		n.pass(time.Second)
		expect := func(level, sentence string) {
			t.Helper()
			n.pass(2 * time.Second)
			if s := n.state(); s.Level != level || !strings.HasPrefix(s.Sentence, sentence) {
				t.Errorf("%s: %s\nwant %s: %s", s.Level, s.Sentence, level, sentence)
			}
		}
		expect("ok", "Healthy: 2 pods, the last relist began ")
		fail := n.Fail(plegtest.GetPodStatus, b, errors.New("no such task"))
		n.ExitContainer(b, "b", 1, "Error")
		expect("warning", "Degraded: the inspection of pod shop/b has failed ")
		n.Hang(plegtest.GetPodStatus, a)
		n.ExitContainer(a, "a", 1, "Error")
		expect("warning", "Degraded: GetPodStatus of pod shop/a (shop/a) has not been answered since 00:00:05 UTC on 1 Jan ")
		if s := n.state(); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "shop/b") || s.Pods[0].State != "hung" ||
			s.Pods[1].State != "failing" {
			t.Errorf("notes %q, pods %+v", s.Notes, s.Pods)
		}
		fail()
		n.Hang(plegtest.GetPods, plegtest.AnyPod)
		n.pass(11 * time.Second)
		expect("warning", "Degraded: GetPods has not been answered since ")
		n.pass(4 * time.Minute)
		expect("error", "Not healthy: pleg was last seen active ")
	})
}

// History is bounded, whatever happens, and what is forgotten is said.
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

// A response writer that cannot stream is said to be one.
func TestStreamNeedsFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		w := httptest.NewRecorder()
		n.ServeHTTP(struct{ http.ResponseWriter }{w}, request("/?format=stream"))
		if w.Code != http.StatusNotImplemented {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// With a gatherer the samples have how long relists and inspections took since the sample
// before.
func TestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		relists := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pleg_relist_duration_seconds", Help: "Relists."})
		calls := prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "kubelet_runtime_operations_duration_seconds", Help: "Calls."},
			[]string{"operation_type"})
		reg.MustRegister(relists, calls)
		relists.Observe(100) // before anybody looked
		n := newNode(t, plegz.WithGatherer(reg))
		n.get("/")
		synctest.Wait()
		relists.Observe(1)
		relists.Observe(3)
		calls.WithLabelValues("container_status").Observe(5)
		calls.WithLabelValues("podsandbox_status").Observe(7)
		calls.WithLabelValues("list_containers").Observe(1000)
		n.pass(2100 * time.Millisecond)
		s := n.state().Samples
		if len(s) != 2 || s[0].Relist == nil || *s[0].Relist != 2 || *s[0].Inspection != 6 || s[1].Relist != nil ||
			s[0].RelistAge == nil {
			t.Errorf("%+v", s)
		}
	})
}

// What is created shows although it has no event, and a death whose inspection hangs too.
func TestShowsWhatHasNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		a := n.setPod("shop", "a", plegtest.Running("a"))
		n.pass(time.Second)
		n.get("/")
		n.Hang(plegtest.GetPodStatus, a)
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

// A pod that comes back with its UID is present again.
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

// message returns the next message of a stream.
func message(t *testing.T, s *stream) state {
	t.Helper()
	select {
	case b := <-s.messages:
		_, data, found := strings.Cut(string(b), "\ndata: ")
		if !found {
			t.Fatalf("no data in %q", b)
		}
		return decode(t, []byte(data))
	default:
		t.Fatal("no message")
		return state{}
	}
}

// first returns the first message, at once.
func first(t *testing.T, s *stream) state {
	t.Helper()
	synctest.Wait()
	return message(t, s)
}

func drain(s *stream) {
	for len(s.messages) > 0 {
		<-s.messages
	}
}
