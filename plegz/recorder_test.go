package plegz_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// With WithRecording, the page shows events since the agent's start, also after a Stop. The
// recording ends when its context ends.
func TestRecordsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := plegtest.NewRuntime()
		ctx, cancel := context.WithCancel(t.Context())
		n := newIdleNode(t, fake, fake, plegz.WithRecording(ctx))
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.g.Start(t.Context())
		n.pass(time.Hour)
		n.ExitContainer(uid, "nginx", 1, "Error")
		n.pass(time.Hour)
		n.g.Stop()
		n.g.Start(t.Context())
		n.pass(time.Hour)
		if s := n.state(); len(s.Events) != 1 || *s.Events[0].ExitCode != 1 || !s.RecordingSince.Equal(s.StartedAt) {
			t.Errorf("events %+v, recording since %v", s.Events, s.RecordingSince)
		}
		cancel()
		synctest.Wait()
		if got := n.subscribers(); got != 0 {
			t.Errorf("%d subscribers after the end", got)
		}
	})
}

// The handler subscribes at its first request. The subscription ends ten minutes after the last
// request, or at Stop. The next request starts a new subscription.
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

// The sentence is as new as the pods. When a stuck pod ends, neither shows it as stuck.
func TestSentenceIsAsNewAsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.pass(2 * time.Second)
		heal := n.Block(plegtest.GetPodStatus, uid)
		n.get("/")
		n.ExitContainer(uid, "nginx", 1, "Error")
		n.pass(20*time.Second + 100*time.Millisecond)
		if s := n.state(); s.Level != "warning" || s.Pods[0].State != "stuck" {
			t.Fatalf("%s, %s", s.Sentence, s.Pods[0].State)
		}
		heal()
		n.pass(300 * time.Millisecond)
		if s := n.state(); s.Level != "ok" || s.Pods[0].State != "crashed" {
			t.Errorf("%s, %s", s.Sentence, s.Pods[0].State)
		}
	})
}
