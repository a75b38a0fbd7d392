package contract_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// lives notes in the order of its calls what a handler is called for, with exit codes and reasons.
type lives struct{ lines []string }

func (l *lives) handler() pleg.Handler {
	note := func(what string) func(*pleg.PodLifecycleEvent) {
		return func(e *pleg.PodLifecycleEvent) {
			line := fmt.Sprintf("%s %s", what, e.Data)
			if e.Initial {
				line = "initially " + line
			}
			if what == "ended" || what == "died" {
				switch code, reason, seen := e.Exit(); {
				case !seen:
					line += " unseen"
				case e.Status.Unconfirmed:
					line += fmt.Sprintf(" %d?", code)
				default:
					line += fmt.Sprintf(" %d %s", code, reason)
				}
			}
			l.lines = append(l.lines, line)
		}
	}
	return pleg.Handler{
		OnContainerStarted: note("started"), OnContainerDied: note("died"),
		OnContainerEnded: note("ended"), OnContainerRemoved: note("removed"),
	}
}

// follow has the handler called for what happens on a node.
func (l *lives) follow(t *testing.T, n *node) (want func(what string, lines ...string)) {
	go func() { _ = n.g.Handle(t.Context(), l.handler()) }()
	return func(what string, lines ...string) {
		t.Helper()
		synctest.Wait()
		if diff := gocmp.Diff(lines, l.lines); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		l.lines = nil
	}
}

// followed starts a node with some pods, and has a handler called for what happens there.
func followed(t *testing.T, pods ...*pleg.Pod) (n *node, want func(what string, lines ...string)) {
	n = newNode(t)
	n.SetPods(pods...)
	n.start()
	return n, (&lives{}).follow(t, n)
}

// Handle: a container that ran is started before it dies, also if no list showed it running, and ends once.
func TestHandleShortContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, want := followed(t, bare("a", plegtest.Exited("a0")))
		want("what exists", "initially started a0", "initially died a0 0 Completed", "initially ended a0 0 Completed")
		n.SetPod(bare("a", plegtest.Exited("a0"), plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 0, "Completed")
		time.Sleep(2 * time.Second)
		want("short", "started a1", "died a1 0 Completed", "ended a1 0 Completed")
		n.SetPod(bare("a", plegtest.Exited("a0"), plegtest.Exited("a1"), plegtest.Created("a2")))
		time.Sleep(2 * time.Second)
		n.RemoveContainer("a", "a2")
		time.Sleep(2 * time.Second)
		want("never started", "died a2 unseen", "ended a2 unseen", "removed a2")
		n.RemovePod("a")
		time.Sleep(2 * time.Second)
		want("gone", "removed a0", "removed a1")
	})
}

// Handle: a container ends once, with the reason that the runtime reports late.
func TestHandleEndWithItsLateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, want := followed(t,
			bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3"), plegtest.Running("a4"),
				plegtest.Running("a5")))
		want("what exists", "initially started a1", "initially started a2", "initially started a3", "initially started a4",
			"initially started a5")

		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1500 * time.Millisecond)
		want("died", "died a1 137 Error")
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		time.Sleep(2 * time.Second)
		want("ended", "ended a1 137 OOMKilled")

		n.EmitExit(exitOf("a2", 137))
		time.Sleep(5 * time.Second)
		want("by an exit event", "died a2 137?")
		n.ExitContainer("a", "a2", 137, "OOMKilled")
		time.Sleep(10 * time.Second)
		want("confirmed", "ended a2 137 OOMKilled")

		n.EmitExit(exitOf("a5", 0))
		time.Sleep(5 * time.Second)
		want("Completed by an exit event", "died a5 0?")
		n.ExitContainer("a", "a5", 0, "Completed")
		time.Sleep(10 * time.Second)
		want("Completed, confirmed", "ended a5 0 Completed")

		n.EmitExit(exitOf("a3", 2))
		time.Sleep(11 * time.Second)
		want("never confirmed", "died a3 2?", "ended a3 2?")

		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.ExitContainer("a", "a4", 2, "Error")
		time.Sleep(20 * time.Second)
		want("not inspected", "died a4 unseen")
		heal()
		time.Sleep(20 * time.Second)
		want("inspected later", "ended a4 2 Error")
	})
}

// Handle: the end of a container whose inspection hangs is given up too.
func TestHandleEndWhileInspectionsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, want := followed(t, bare("a", plegtest.Running("a1")))
		want("what exists", "initially started a1")
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "a")()
		n.EmitExit(exitOf("a1", 137))
		time.Sleep(11 * time.Second)
		want("given up", "died a1 137?", "ended a1 137?")
	})
}

// Handle: a container that was gone before the first inspection of its pod dies before it ends.
func TestHandleEndOfAContainerThatWasGoneFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Stale: true, Delay: 15 * time.Second, Times: 1})
		want := (&lives{}).follow(t, n)
		n.start()
		n.EmitExit(exitOf("a1", 0))
		n.RemoveContainer("a", "a1")
		time.Sleep(20 * time.Second)
		want("in order", "initially started a1", "initially started a2", "died a1 0?", "ended a1 0?", "removed a1")
	})
}

// Handle: a container ends before it is started again under its ID.
func TestHandleEndBeforeStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, want := followed(t, bare("a", plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(1100 * time.Millisecond)
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		time.Sleep(10 * time.Second)
		want("two lives", "initially started a1", "died a1 137 Error", "ended a1 137 Error", "started a1")
	})
}

// Handle: a container is started before its death, although no inspection has shown either.
func TestHandleStartedBeforeADeathThatIsNotInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, want := followed(t, bare("a", plegtest.Running("a0")))
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.SetPod(bare("a", plegtest.Running("a0"), plegtest.Running("a1")))
		n.ExitContainer("a", "a1", 1, "Error")
		time.Sleep(1500 * time.Millisecond)
		heal()
		time.Sleep(20 * time.Second)
		want("short", "initially started a0", "started a1", "died a1 unseen", "ended a1 1 Error")
	})
}

// Handle: what the first full list shows dead ends initially, also if it is gone before its pod is inspected.
func TestHandleInitialEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionWorkers(1))
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1"), plegtest.Exited("b0")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Delay: 500 * time.Millisecond, Times: 1})
		want := (&lives{}).follow(t, n)
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.RemoveContainer("b", "b0") // b waits for the worker
		n.g.RequestRelist("b")
		time.Sleep(5 * time.Second)
		want("what exists", "initially started a1", "initially started b1", "initially started b0",
			"initially died b0 unseen", "initially ended b0 unseen", "removed b0")
	})
}

// Handle: a pod changes when a sandbox is replaced, or its address is another.
func TestHandlePodChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(plegtest.NewPod("a", plegtest.Running("a1")))
		n.SetIPs("a", "10.0.0.1")
		n.start()
		var lines []string
		go func() {
			_ = n.g.Handle(t.Context(), pleg.Handler{
				OnPodAdded:   func(p *pleg.Pod, initial bool) { lines = append(lines, fmt.Sprintf("%s %v", p.ID, initial)) },
				OnPodChanged: func(p *pleg.Pod) { lines = append(lines, fmt.Sprintf("%s changed, %d", p.ID, len(p.Sandboxes))) },
			})
		}()
		synctest.Wait()
		n.SetContainer("a", "a1", pleg.ContainerStateExited)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want(t, "a death changes no pod", lines, "a true")
		n.SetIPs("a", "10.0.0.2")
		n.g.RequestReinspect("a")
		time.Sleep(2 * time.Second)
		n.SetSandbox("a", "another", pleg.ContainerStateRunning)
		time.Sleep(2 * time.Second)
		n.SetPod(plegtest.NewPod("b"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want(t, "changes", lines, "a true", "a changed, 1", "a changed, 2", "b false")
	})
}

// Subscribe: WithSynced ends the first events; other subscriptions get no such event.
func TestSubscribeWithSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		early, without := n.g.Subscribe(t.Context(), pleg.WithSynced()), n.g.Watch()
		n.start()
		readInOrder := func(events <-chan *pleg.PodLifecycleEvent) (lines []string) {
			for len(events) > 0 {
				lines = append(lines, line(<-events))
			}
			return lines
		}
		want(t, "before the start", readInOrder(early), "a Started a1", " Synced")
		want(t, "later", readInOrder(n.g.Subscribe(t.Context(), pleg.WithSynced())), "a Started a1", " Synced")
		n.SetPod(bare("b", plegtest.Running("b1")))
		time.Sleep(2 * time.Second)
		want(t, "once", read(early), "b Started b1")
		want(t, "not asked for", read(without), "a Started a1", "b Started b1")
	})
}
