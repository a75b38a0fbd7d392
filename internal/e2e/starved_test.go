package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var starvedStops = flag.Int("starved.stops", 3, "how often TestStarvedRuntime stops the runtime while containers start")

// If the runtime gets no CPU time while a container starts, the runtime records the start too late.
// If the container exits at once, its start time is then after its end time. Even then, the death
// is reported once, with the exit code. After its death, the container is never reported or cached
// as running.
func TestStarvedRuntime(t *testing.T) {
	n := newBareNode(t)
	generators := []struct {
		name string
		*node
	}{
		{"without exit events", n.beside()},
		{"with exit events", n.besideWithExits()},
	}
	for _, g := range generators {
		g.watchDead()
	}

	codes := make(map[string]int)
	var ids []string
	endedFirst := 0
	stays := n.runPod("stays")
	for i := range *starvedStops {
		// The generators already know the pod of the first container. The pod of the second one is
		// new.
		started := []string{n.createToExit(stays, 2*i+1), n.createToExit(n.runPod(fmt.Sprint("new-", i)), 2*i+2)}
		n.startStarved(2500*time.Millisecond, started...)
		for j, id := range started {
			codes[id] = 2*i + 1 + j
			for _, g := range generators {
				g.eventually(fmt.Sprintf("%s: the death of %.12s", g.name, id), func() string {
					if !g.journal.has(id, died) {
						return "not delivered"
					}
					return ""
				})
			}
			if s := n.awaitExit(id); s.StartedAt > s.FinishedAt {
				endedFirst++
			}
		}
		ids = append(ids, started...)
	}
	t.Logf("%d of %d containers have a start that is stamped after their end", endedFirst, len(ids))
	if endedFirst == 0 {
		t.Error("no start is stamped after its container's end: this run shows nothing")
	}

	time.Sleep(3 * time.Second) // a late reason or a second event would have come by now
	for _, id := range ids {
		n.must(n.client.Remove(n.ctx, id))
	}
	for _, g := range generators {
		for _, id := range ids {
			g.eventually(fmt.Sprintf("%s: the removal of %.12s", g.name, id), func() string {
				if !g.journal.has(id, removed) {
					return "not delivered"
				}
				return ""
			})
		}
		g.relistTwice()
		wrong := 0
		for _, id := range ids {
			if problem := g.oneLife(id, codes[id]); problem != "" {
				wrong++
				t.Errorf("%s: %.12s: %s", g.name, id, problem)
			}
		}
		t.Logf("%s: %d of %d containers have wrong events", g.name, wrong, len(ids))
	}
}

func (n *node) createToExit(pod *testnode.Pod, code int) string {
	n.t.Helper()
	id, err := n.client.Create(n.ctx, pod, testnode.Container{
		Name: fmt.Sprint("exits-", code), Command: testnode.Exit(code),
	})
	n.must(err)
	return id
}

// startStarved starts containers that exit at once. It stops the runtime before they run. It
// resumes the runtime when they have ended and the time in the argument while has passed.
func (n *node) startStarved(while time.Duration, ids ...string) {
	n.t.Helper()
	starts := make(chan error, len(ids))
	var stuck []*testnode.RuncFault
	for _, id := range ids {
		f := n.blockRunc("start", id)
		stuck = append(stuck, f)
		go func() { starts <- n.client.Start(n.ctx, id) }()
		n.awaitMet(f)
	}
	n.must(n.daemon.Freeze())
	for _, f := range stuck {
		n.must(f.Heal())
	}
	for _, id := range ids {
		n.eventually("the end of the process", func() string {
			if n.daemon.Alive(id) {
				return "it lives"
			}
			return ""
		})
	}
	pause(n.ctx, while)
	n.must(n.daemon.Thaw())
	for range ids {
		n.must(<-starts)
	}
}

// oneLife checks the events of a container that exited with a code and was removed. It returns the
// first error, or "".
func (n *node) oneLife(id string, code int) string {
	events := n.journal.types(id)
	if !slices.Equal(events, []pleg.PodLifeCycleEventType{died, removed}) &&
		!slices.Equal(events, []pleg.PodLifeCycleEventType{started, died, removed}) {
		return fmt.Sprintf("events %v", events)
	}
	death := n.journal.event(id, died)
	cached := containerIn(death.status, id)
	for where, s := range map[string]*pleg.Status{"the event": death.Status, "the cache at the event": cached} {
		if s == nil || s.State != pleg.ContainerStateExited || s.ExitCode != code {
			return fmt.Sprintf("%s has %+v, want exit code %d", where, s, code)
		}
	}
	return ""
}

// watchDead reads the cache until the test ends. It fails the test if the cache shows a container
// as running after its death was delivered.
func (n *node) watchDead() {
	ctx, stop := context.WithCancel(n.ctx)
	var joined sync.WaitGroup
	joined.Go(func() {
		running := make(map[string]bool)
		for ; ctx.Err() == nil; pause(ctx, 2*time.Millisecond) {
			for id, uid := range n.journal.deaths() {
				status, _ := n.cache.Get(uid) // Get may return a status together with an error
				s := containerIn(status, id)
				if s != nil && s.State == pleg.ContainerStateRunning && !running[id] {
					running[id] = true
					n.t.Errorf("the cache shows %.12s running after its death was delivered: %+v", id, *s)
				}
			}
		}
	})
	n.t.Cleanup(func() {
		stop()
		joined.Wait()
	})
}
