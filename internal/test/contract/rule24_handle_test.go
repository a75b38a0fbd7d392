package contract_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// handled records the calls of a handler's functions, one per line.
type handled struct {
	lines []string
	err   error
	over  bool
}

// handler returns a handler that records a line for every call. It also calls the function then
// with each line, unless then is nil.
func (h *handled) handler(then func(string)) pleg.Handler {
	note := func(line string) {
		h.lines = append(h.lines, line)
		if then != nil {
			then(line)
		}
	}
	event := func(e *pleg.PodLifecycleEvent) { note(line(e)) }
	return pleg.Handler{
		OnPodAdded:         func(p *pleg.Pod, _ bool) { note(fmt.Sprintf("%s added with %d", p.ID, len(p.Containers))) },
		OnPodRemoved:       func(p *pleg.Pod) { note(fmt.Sprintf("%s removed with %d", p.ID, len(p.Containers))) },
		OnContainerStarted: event, OnContainerDied: event, OnContainerRemoved: event, OnPodSync: event,
	}
}

// handle starts a goroutine that calls Handle for the node.
func (n *node) handle(ctx context.Context, then func(string), opts ...pleg.SubscribeOption) *handled {
	h := &handled{}
	go func() {
		h.err = n.g.Handle(ctx, h.handler(then), opts...)
		h.over = true
	}()
	synctest.Wait()
	return h
}

// want compares the calls since the last call of want with the expected lines.
func (h *handled) want(t *testing.T, what string, lines ...string) {
	t.Helper()
	synctest.Wait()
	want(t, what, h.lines, lines...)
	h.lines = nil
}

// OnPodAdded is called before the first event of a pod, and OnPodRemoved after the last, even for a
// pod without containers.
func TestHandle(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprint(started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newOrderlyNode(t)
				n.SetPods(bare("b", plegtest.Running("b1"), plegtest.Exited("b2")), bare("a"))
				if started {
					n.start()
				} else {
					n.relist()
				}
				ctx, cancel := context.WithCancel(t.Context())
				h := n.handle(ctx, nil)
				h.want(t, "what exists", "a added with 0", "b added with 2", "b Started b1", "b Started b2", "b Died b2")
				n.ExitContainer("b", "b1", 1, "Error")
				n.SetPod(bare("c", plegtest.Created("c1")))
				n.SetPod(plegtest.NewPod("d", plegtest.Running("d1")))
				n.relist()
				h.want(t, "changes", "b Died b1", "c added with 1", "d added with 1", "d Started d1")
				n.g.RequestReinspect("c")
				n.relist()
				h.want(t, "a reinspection", "c PodSync")
				n.SetPods()
				n.relist()
				h.want(t, "the end of all", "a removed with 0", "b Removed b1", "b Removed b2", "b removed with 2",
					"c Died c1", "c Removed c1", "c removed with 1",
					"d Died d1", "d Removed d1", "d removed with 1")
				cancel()
				h.want(t, "nothing more")
			})
		})
	}
}

// While a function runs, updates beyond the capacity are coalesced. A pod that comes and goes
// meanwhile is not handled. A pod that goes and comes back is not added again.
func TestHandleIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		busy := make(chan struct{})
		h := n.handle(ctx, func(string) { <-busy }, pleg.WithCapacity(-1))
		for _, list := range [][]*pleg.Pod{
			{bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1"))},
			{bare("c")},
			{bare("a", plegtest.Running("a2")), bare("c")},
		} {
			n.SetPods(list...)
			n.relist()
		}
		h.want(t, "at first", "a added with 1")
		if got := n.g.HealthReport().Backlog; got != 2 {
			t.Errorf("a backlog of %d pods", got)
		}
		close(busy)
		h.want(t, "then", "a Started a1", "a Died a1", "a Removed a1", "a Started a2", "c added with 0")
		cancel()
		synctest.Wait()
	})
}

// If the context of Handle ends, Handle returns the cause. If Stop is called, Handle returns nil.
// Handle may be called before Start, after Stop, and twice at once.
func TestHandleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped, cancelled := n.handle(t.Context(), nil), n.handle(ctx, nil)
		stopped.want(t, "before Start")
		n.g.Start(t.Context())
		for _, h := range []*handled{stopped, cancelled} {
			h.want(t, "after Start", "a added with 1", "a Started a1")
		}
		cancel(enough)
		synctest.Wait()
		if !cancelled.over || !errors.Is(cancelled.err, enough) || stopped.over {
			t.Errorf("after the end of the context: %+v, %+v", cancelled, stopped)
		}
		n.g.Stop()
		synctest.Wait()
		if !stopped.over || stopped.err != nil {
			t.Errorf("after Stop: %+v", stopped)
		}
		again := n.handle(t.Context(), nil)
		again.want(t, "after Stop", "a added with 1", "a Started a1")
		n.RemovePod("a")
		time.Sleep(time.Minute)
		again.want(t, "nothing runs")
		n.start()
		again.want(t, "after another Start", "a Died a1", "a Removed a1", "a removed with 1")
		if err := n.g.Handle(ctx, pleg.Handler{}); !errors.Is(err, enough) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

// A handler's functions may use the generator. When one of them has ended the subscription, no more
// functions are called.
func TestHandlerUsesTheGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.start()
		inner := &handled{}
		h := n.handle(t.Context(), func(line string) {
			n.relist()
			n.g.RequestRelist("a")
			_, _ = n.g.Healthy()
			if line == "a Started a1" {
				ctx, cancel := context.WithCancel(t.Context())
				inner.err = n.g.Handle(ctx, inner.handler(func(string) { cancel() }))
				n.g.Stop()
			}
		})
		h.want(t, "it", "a added with 2", "a Started a1")
		inner.want(t, "a handler in it", "a added with 2")
		if !h.over || h.err != nil || !errors.Is(inner.err, context.Canceled) {
			t.Errorf("%v, %v", h.err, inner.err)
		}
	})
}

// Nil functions are skipped, even if all functions are nil.
func TestHandlerFunctionsAreOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		handledBy := make(map[string]*handled)
		for line, keep := range map[string]func(from, to *pleg.Handler){
			"nothing":          func(_, _ *pleg.Handler) {},
			"a added with 1":   func(from, to *pleg.Handler) { to.OnPodAdded = from.OnPodAdded },
			"a Started a1":     func(from, to *pleg.Handler) { to.OnContainerStarted = from.OnContainerStarted },
			"a PodSync":        func(from, to *pleg.Handler) { to.OnPodSync = from.OnPodSync },
			"a Died a1":        func(from, to *pleg.Handler) { to.OnContainerDied = from.OnContainerDied },
			"a Removed a1":     func(from, to *pleg.Handler) { to.OnContainerRemoved = from.OnContainerRemoved },
			"a removed with 1": func(from, to *pleg.Handler) { to.OnPodRemoved = from.OnPodRemoved },
		} {
			h := &handled{}
			handledBy[line] = h
			all, some := h.handler(nil), pleg.Handler{Want: func(p *pleg.Pod) bool { return p.ID == "a" }}
			keep(&all, &some)
			go func() { h.err = n.g.Handle(ctx, some) }()
		}
		synctest.Wait()
		for _, change := range []func(){
			func() { n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1"))) },
			func() { n.g.RequestReinspect("a") },
			func() { n.SetPods() },
		} {
			change()
			n.relist()
			synctest.Wait()
		}
		for line, h := range handledBy {
			if line == "nothing" {
				h.want(t, line)
			} else {
				h.want(t, line, line)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// If a function of a handler panics, Handle panics and its subscription ends. The generator
// continues.
func TestHandlerThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		events := n.g.Subscribe(t.Context(), pleg.WithCapacity(10))
		func() {
			defer func() {
				if p := recover(); p != "oops" {
					t.Errorf("recovered %v", p)
				}
			}()
			_ = n.g.Handle(t.Context(), pleg.Handler{OnPodAdded: func(*pleg.Pod, bool) { panic("oops") }})
			t.Error("Handle has returned")
		}()
		n.RemovePod("a")
		n.relist()
		synctest.Wait()
		want(t, "another", read(events), "a Started a1", "a Died a1", "a Removed a1")
		if got := n.g.HealthReport().Subscribers; got != 1 {
			t.Errorf("%d subscriptions are left", got)
		}
		healthy(t, n.g)
	})
}

// A handler with Want is sent only the events of wanted pods. Want is called once for each pod, and
// again when the pod comes back. Want may use the generator.
func TestHandlerWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		var asked []string
		h := &handled{}
		wanting := h.handler(nil)
		wanting.Want = func(pod *pleg.Pod) bool {
			n.g.Pods()
			n.g.HealthReport()
			asked = append(asked, fmt.Sprint(pod.ID, " ", pod.Namespace))
			return pod.Namespace == "shop"
		}
		go func() { h.err = n.g.Handle(t.Context(), wanting) }()
		in := func(namespace string, pod *pleg.Pod) *pleg.Pod {
			pod.Namespace = namespace
			return pod
		}
		for _, pods := range [][]*pleg.Pod{
			{in("shop", bare("a", plegtest.Running("a1"))), bare("b", plegtest.Running("b1"))},
			{in("shop", bare("a", plegtest.Exited("a1"))), bare("b", plegtest.Exited("b1"))},
			{},
			{bare("a", plegtest.Running("a2")), in("shop", bare("b"))},
			{},
		} {
			n.SetPods(pods...)
			n.relist()
			synctest.Wait()
		}
		h.want(t, "handled", "a added with 1", "a Started a1", "a Died a1", "a Removed a1", "a removed with 1",
			"b added with 0", "b removed with 0")
		slices.Sort(asked)
		want(t, "asked", asked, "a default", "a shop", "b default", "b shop")
	})
}

// A function takes 5 s, and a container dies every second. Every death is kept and handled.
func TestHandleLosesNoDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		ctx, cancel := context.WithCancel(t.Context())
		var died []string
		go func() {
			_ = n.g.Handle(ctx, pleg.Handler{OnContainerDied: func(e *pleg.PodLifecycleEvent) {
				died = append(died, e.Data.(string))
				time.Sleep(5 * time.Second)
			}})
		}()
		synctest.Wait() // Handle has subscribed
		var want []string
		for i := range 10 {
			id := fmt.Sprint("a", i)
			n.SetPod(bare("a", plegtest.Running(id)))
			n.relist()
			n.ExitContainer("a", id, 1, "Error")
			n.relist()
			want = append(want, id)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(died, want) {
			t.Errorf("died %v, want %v", died, want)
		}
		cancel()
		synctest.Wait()
	})
}

// OnContainerCreated is called once for each container, before its other events, whatever its first
// listed state.
func TestHandleContainerCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(plegtest.NewPod("a", plegtest.Created("a1"), plegtest.Exited("a2")))
		n.relist()
		var lines []string
		note := func(e *pleg.PodLifecycleEvent) {
			lines = append(lines, fmt.Sprintf("%s %v %v", e.Type, e.Data, e.Initial))
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_ = n.g.Handle(ctx, pleg.Handler{
				OnContainerCreated: note, OnContainerStarted: note, OnContainerDied: note,
				OnSynced: func() { lines = append(lines, "synced") },
			})
		}()
		synctest.Wait()
		want(t, "what exists", lines, "ContainerCreated a1 true", "ContainerCreated a2 true",
			"ContainerStarted a2 true", "ContainerDied a2 true", "synced")
		lines = nil
		n.SetPod(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a3"), plegtest.Created("a4")))
		n.relist()
		n.g.RequestReinspect("a")
		n.relist()
		synctest.Wait()
		slices.Sort(lines[2:])
		want(t, "changes", lines, "ContainerCreated a3 false", "ContainerCreated a4 false",
			"ContainerStarted a1 false", "ContainerStarted a3 false")
		cancel()
		synctest.Wait()
	})
}

// followed starts a node with the given pods, and a handler that records its calls.
func followed(t *testing.T, pods ...*pleg.Pod) (n *node, want func(what string, lines ...string)) {
	n = newNode(t)
	n.SetPods(pods...)
	n.start()
	return n, (&lives{}).follow(t, n)
}

// Handle: for a container that ran, OnContainerStarted is called before OnContainerDied, even if no
// list showed it running. OnContainerEnded is called once.
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

// Handle: OnContainerEnded is called once for a container. If the runtime changes the reason after
// the death, the call has the new reason.
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

// Handle: OnContainerEnded is called even if the inspection of the container's pod is stuck.
func TestHandleEndWhileInspectionsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, want := followed(t, bare("a", plegtest.Running("a1")))
		want("what exists", "initially started a1")
		defer n.BlockIgnoringCancel(plegtest.GetPodStatus, "a")()
		n.EmitExit(exitOf("a1", 137))
		time.Sleep(11 * time.Second)
		want("given up", "died a1 137?", "ended a1 137?")
	})
}

// Handle: if a container is removed before the first inspection of its pod, OnContainerDied is
// called before OnContainerEnded.
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

// Handle: if a container is started again under its ID, OnContainerEnded is called before
// OnContainerStarted. If OnContainerDied had the exit code, OnContainerEnded has it too, whatever shows the new
// life first: a list or a status.
func TestHandleEndBeforeStartedAgain(t *testing.T) {
	twoLives := regexp.MustCompile(`^initially started a1(, died a1 137( Error|\?), ended a1 137( Error|\?), started a1|` +
		`, died a1 unseen, ended a1 unseen, started a1)?$`)
	for name, runtime := range map[string]func(*plegtest.Runtime) pleg.Runtime{
		"polling": polling, "with exit events": listing,
		"with all streams": func(rt *plegtest.Runtime) pleg.Runtime { return rt },
	} {
		for pause := time.Duration(0); pause <= 4*time.Second; pause += 100 * time.Millisecond {
			t.Run(fmt.Sprint(name, pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNodeOf(t, runtime)
					n.EmitOnChange(true)
					n.EmitOnExit(true)
					n.SetPods(bare("a", plegtest.Running("a1")))
					n.start()
					n.Delay(plegtest.GetPod, "", 20*time.Millisecond)
					l := &lives{}
					l.follow(t, n)
					time.Sleep(450 * time.Millisecond)
					n.ExitContainer("a", "a1", 137, "Error")
					time.Sleep(pause)
					n.SetContainer("a", "a1", pleg.ContainerStateRunning)
					time.Sleep(time.Minute)
					synctest.Wait()
					if got := strings.Join(l.lines, ", "); !twoLives.MatchString(got) {
						t.Error(got)
					}
				})
			})
		}
	}
}

// Handle: an inspection has shown the next life of a container, under the same ID, and the container is
// removed before a list shows that life. OnContainerEnded has the exit code that OnContainerDied had.
func TestHandleEndBeforeRemovedInItsNextLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetricsOf(t, polling)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.start()
		want := (&lives{}).follow(t, n)
		time.Sleep(450 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "Error")
		time.Sleep(time.Second)
		want("exit", "initially started a1", "initially started a2", "died a1 137 Error")
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.g.RequestReinspect("a")
		time.Sleep(200 * time.Millisecond)
		n.RemoveContainer("a", "a1")
		time.Sleep(time.Second)
		want("removed", "ended a1 137 Error", "removed a1")
		wantExits(t, reg, "deaths", map[string]float64{"Error": 1})
	})
}

// Handle: OnContainerStarted is called before OnContainerDied, even if no inspection has shown the
// start or the death.
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

// Handle: the first full list shows a container exited. The call of OnContainerEnded is Initial,
// even if the container is removed before its pod is inspected.
func TestHandleInitialEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, pleg.WithInspectionWorkers(1))
		n.SetPods(bare("a", plegtest.Running("a1")), bare("b", plegtest.Running("b1"), plegtest.Exited("b0")))
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Delay: 500 * time.Millisecond, Times: 1})
		want := (&lives{}).follow(t, n)
		n.start()
		time.Sleep(100 * time.Millisecond)
		n.RemoveContainer("b", "b0") // pod b still waits for the worker
		n.g.RequestRelist("b")
		time.Sleep(5 * time.Second)
		want("what exists", "initially started a1", "initially started b1", "initially started b0",
			"initially died b0 unseen", "initially ended b0 unseen", "removed b0")
	})
}

// Handle: OnPodChanged is called if a sandbox of the pod is replaced or the pod's address changes.
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
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want(t, "no inspection has shown the address", lines, "a true")
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
