package plegz_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

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
