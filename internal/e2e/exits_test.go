package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// reportedExits stores the exits that a runtime reported, and the time of each container's first
// report.
type reportedExits struct {
	mu    sync.Mutex
	exits map[string][]pleg.ContainerExit
	first map[string]time.Time
	ends  map[string]time.Time // the time of CRI's own event, by container
	ended chan error           // receives the error of the watch
	// witnesses returns a description of the runtime and of its sources of exits.
	witnesses func() string
}

func (e *reportedExits) exit(exit pleg.ContainerExit) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exits[exit.ContainerID] = append(e.exits[exit.ContainerID], exit); len(e.exits[exit.ContainerID]) == 1 {
		e.first[exit.ContainerID] = now
	}
}

func (e *reportedExits) of(id string) []pleg.ContainerExit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exits[id]
}

// readCRI reads CRI's events until the stream ends.
func (e *reportedExits) readCRI(stream runtimeapi.RuntimeService_GetContainerEventsClient) {
	for {
		event, err := stream.Recv()
		if err != nil {
			return
		}
		now := time.Now()
		e.mu.Lock()
		if event.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			e.ends[event.ContainerId] = now
		}
		e.mu.Unlock()
	}
}

// watchExits watches the runtime's exit events until the test ends. If endings is true, it also
// reads CRI's events.
func (n *node) watchExits(endings bool) *reportedExits {
	n.t.Helper()
	runtime, err := cri.Connect(n.ctx, n.daemon.Endpoint(), cri.WithExitsDir(n.daemon.ExitsDir()),
		cri.WithLogger(testLogger(n.t)))
	n.must(err)
	ctx, stop := context.WithCancel(n.ctx)
	reported := &reportedExits{exits: map[string][]pleg.ContainerExit{}, first: map[string]time.Time{},
		ends: map[string]time.Time{}, ended: make(chan error, 1), witnesses: runtime.DescribeRuntime}
	var joined sync.WaitGroup
	n.t.Cleanup(func() {
		stop()
		joined.Wait()
		runtime.Close()
	})
	connected := make(chan struct{})
	joined.Go(func() {
		reported.ended <- runtime.WatchContainerExits(ctx, sync.OnceFunc(func() { close(connected) }), reported.exit)
	})
	select {
	case <-connected:
	case err := <-reported.ended:
		n.t.Fatal("the runtime reports no exits:", err)
	}
	if endings {
		stream, err := n.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		n.must(err)
		joined.Go(func() { reported.readCRI(stream) })
	}
	return reported
}

// Each exit of a container is reported once, with its exit code and time, before CRI reports it.
// The exit of a command that runs in the container is not reported.
func TestExitEvents(t *testing.T) {
	n := newBareNode(t)
	reported := n.watchExits(n.daemon.Runtime().Events)
	pod := n.runPod("exits")
	var sooner, later measure.Samples
	for i := range 10 {
		id := n.run(pod, testnode.Container{Name: fmt.Sprint("c", i), Command: testnode.ExitOnSignal(i)})
		_, err := n.client.ExecSync(n.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 30})
		n.must(err)
		code, signal := i, unix.SIGUSR1
		if i%5 == 4 {
			code, signal = 137, unix.SIGKILL
		}
		if exits := reported.of(id); len(exits) > 0 {
			t.Fatalf("%+v while the container runs", exits)
		}
		signalled := time.Now()
		n.signal(id, signal)
		n.eventually("the exit", func() string {
			if len(reported.of(id)) == 0 {
				return "not reported"
			}
			return ""
		})
		n.awaitExit(id)
		r, err := n.client.ContainerStatus(n.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		n.must(err)
		exit := reported.of(id)[0]
		if exit.ExitCode != code || int(r.Status.ExitCode) != code || exit.PodUID != "" {
			t.Errorf("%+v, and the status has %d; want %d", exit, r.Status.ExitCode, code)
		}
		reported.mu.Lock()
		first := reported.first[id]
		reported.mu.Unlock()
		// The two end times have different sources. Both must be after the signal. The exit event's
		// time must be before its report.
		shown := time.Unix(0, r.Status.FinishedAt)
		for _, end := range []time.Time{exit.FinishedAt, shown} {
			if end.Before(signalled.Add(-n.daemon.Runtime().EarlyBy)) {
				t.Errorf("an end at %v, and the signal was sent at %v", end, signalled)
			}
		}
		if exit.FinishedAt.After(first) {
			t.Errorf("an end at %v was reported at %v", exit.FinishedAt, first)
		}
		if shown.After(exit.FinishedAt) {
			shown = exit.FinishedAt
		}
		sooner = append(sooner, first.Sub(shown))
		if n.daemon.Runtime().Events {
			n.eventually("CRI's event", func() string {
				reported.mu.Lock()
				defer reported.mu.Unlock()
				if reported.ends[id].IsZero() {
					return "none"
				}
				if ahead := reported.ends[id].Sub(reported.first[id]); ahead < 0 {
					t.Errorf("CRI reported the exit %v before", -ahead)
				}
				later = append(later, reported.ends[id].Sub(exit.FinishedAt))
				return ""
			})
		}
		if exits := reported.of(id); len(exits) != 1 {
			t.Errorf("reported %d times: %+v", len(exits), exits)
		}
	}
	for what, s := range map[string]measure.Samples{"exit event": sooner, "CRI's event": later} {
		t.Logf("end → %s, of %d: p50 %s, p90 %s, max %s", what, len(s), measure.Milliseconds(s.Quantile(0.5)),
			measure.Milliseconds(s.Quantile(0.9)), measure.Milliseconds(s.Quantile(1)))
	}
	n.must(n.client.StopPod(n.ctx, pod))
	if n.daemon.ExitsDir() == "" { // the sandboxes of CRI-O have no process in this test
		n.eventually("the sandbox's exit", func() string {
			if len(reported.of(pod.SandboxID)) == 0 {
				return "not reported"
			}
			return ""
		})
	}
}

// If a command in a container has the container's ID, its exit is not reported as the container's
// exit.
func TestExecWithTheContainersID(t *testing.T) {
	n := newBareNode(t)
	if n.daemon.ExitsDir() != "" {
		t.Skip("only containerd has IDs of commands")
	}
	w := n.newWatcher(true)
	pod := n.runPod("exec")
	id := n.run(pod, testnode.Container{Name: "app", Command: testnode.ExitOnSignal(3)})
	w.next(pleg.ContainerStarted, id)
	for range 5 {
		n.must(n.daemon.Ctr(n.ctx, "task", "exec", "--exec-id", id, id, "true"))
	}
	n.signal(id, unix.SIGUSR1)
	if e := w.next(pleg.ContainerDied, id); e.Status == nil || e.Status.ExitCode != 3 {
		t.Errorf("%+v", e.Status)
	}
	w.eachDiedOnce()
}

// If a container exits while the runtime is down, its exit is still reported. On CRI-O, the report
// comes from conmon's exit file. On containerd, the report comes from the shim.
func TestExitEventsAcrossARestart(t *testing.T) {
	n := newBareNode(t)
	reported := n.watchExits(false)
	pod := n.runPod("outlives")
	id := n.run(pod, testnode.Container{Name: "app", Command: testnode.ExitOnSignal(3)})
	pid, err := n.client.Pid(n.ctx, id)
	n.must(err)
	t.Log(reported.witnesses())
	n.must(n.daemon.Kill())
	n.signalPid(pid, unix.SIGUSR1)
	n.eventually("the exit", func() string {
		if exits := reported.of(id); len(exits) != 1 || exits[0].ExitCode != 3 {
			return fmt.Sprint(exits)
		}
		return ""
	})
	n.must(n.daemon.Restart(n.ctx))
	n.awaitExit(id)
	if exits := reported.of(id); len(exits) != 1 {
		t.Errorf("reported %d times: %+v", len(exits), exits)
	}
}

// watcher is a generator with a reader that receives every event without delay, even while the test
// is busy.
type watcher struct {
	*node
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
	read      chan received
	deaths    map[string]int
}

// received is an event, and the time when it was received.
type received struct {
	*pleg.PodLifecycleEvent
	at time.Time
}

// newWatcher starts a generator on the node, with or without the runtime's exit events.
func (n *node) newWatcher(exitEvents bool, options ...pleg.Option) *watcher {
	n.t.Helper()
	opts := []cri.Option{cri.WithLogger(testLogger(n.t))}
	if exitEvents {
		opts = append(opts, cri.WithExitsDir(n.daemon.ExitsDir()))
	} else {
		opts = append(opts, cri.WithoutExitEvents())
	}
	runtime, err := cri.Connect(n.ctx, n.daemon.Endpoint(), opts...)
	n.must(err)
	w := &watcher{node: n, cache: pleg.NewCache(), read: make(chan received, 1000), deaths: make(map[string]int)}
	w.generator = pleg.New(runtime, append(options, pleg.WithCache(w.cache), pleg.WithLogger(testLogger(n.t)))...)
	events := w.generator.Watch()
	w.generator.Start(n.t.Context())
	var joined sync.WaitGroup
	ctx, stop := context.WithCancel(n.ctx)
	n.t.Cleanup(func() {
		stop()
		joined.Wait()
		w.generator.Stop()
		runtime.Close()
	})
	joined.Go(func() {
		for {
			select {
			case e := <-events:
				w.read <- received{e, time.Now()}
			case <-ctx.Done():
				return
			}
		}
	})
	n.must(w.generator.WaitForSync(n.ctx))
	if exitEvents {
		n.eventually("the exit stream", func() string {
			if state := w.generator.HealthReport().ExitStream.State; state != pleg.StreamConnected {
				return string(state)
			}
			return ""
		})
	}
	return w
}

// next returns the next event of this type and container. It counts all deaths that it reads.
func (w *watcher) next(kind pleg.PodLifeCycleEventType, id string) received {
	w.t.Helper()
	for {
		select {
		case e := <-w.read:
			w.count(e)
			if e.Type == kind && e.Data == id {
				return e
			}
		case <-time.After(patience):
			w.t.Fatalf("no %s of %s", kind, id)
		}
	}
}

func (w *watcher) count(e received) {
	if e.Type == pleg.ContainerDied && !e.IsSandbox() {
		w.deaths[e.Data.(string)]++
	}
}

// eachDiedOnce fails the test if a container's death was reported twice.
func (w *watcher) eachDiedOnce() {
	w.t.Helper()
	for len(w.read) > 0 {
		w.count(<-w.read)
	}
	for id, n := range w.deaths {
		if n != 1 {
			w.t.Errorf("%.12s has died %d times", id, n)
		}
	}
}

// With exit events, a generator reports each death once, with its exit code. Later the runtime's
// status confirms the death. The test logs how much later the generator reports a death than a bare
// reader of the runtime's exits.
func TestDeathsByExitEvents(t *testing.T) {
	n := newBareNode(t)
	reported := n.watchExits(false)
	w := n.newWatcher(true)
	pod := n.runPod("deaths")
	var delivered, behind measure.Samples
	unconfirmed := 0
	for i := range 10 {
		id := n.run(pod, testnode.Container{Name: fmt.Sprint("c", i), Command: testnode.ExitOnSignal(i)})
		w.next(pleg.ContainerStarted, id)
		n.signal(id, unix.SIGUSR1)
		e := w.next(pleg.ContainerDied, id)
		if e.Status == nil || e.Status.ExitCode != i {
			t.Errorf("the death of %s has %+v", id, e.Status)
		}
		if e.Status.Unconfirmed {
			unconfirmed++
		}
		delivered = append(delivered, e.at.Sub(e.Status.FinishedAt))
		n.eventually("the bare reader", func() string {
			reported.mu.Lock()
			defer reported.mu.Unlock()
			if reported.first[id].IsZero() {
				return "nothing"
			}
			behind = append(behind, e.at.Sub(reported.first[id]))
			return ""
		})
		n.eventually("the runtime's status", func() string {
			status, err := w.cache.Get(types.UID(pod.UID))
			n.must(err)
			for _, s := range status.ContainerStatuses {
				if s.ID.ID == id && s.State == pleg.ContainerStateExited && !s.Unconfirmed && s.ExitCode == i {
					return ""
				}
			}
			return "not in the cache"
		})
	}
	time.Sleep(3 * time.Second) // a late reason or a second report would have come by now
	w.eachDiedOnce()
	if unconfirmed < 8 {
		t.Errorf("%d of 10 deaths were reported by exit events", unconfirmed)
	}
	for what, s := range map[string]measure.Samples{
		"end → ContainerDied": delivered, "the bare reader → ContainerDied": behind,
	} {
		t.Logf("%s, of %d: p50 %s, p90 %s, max %s", what, len(s), measure.Milliseconds(s.Quantile(0.5)),
			measure.Milliseconds(s.Quantile(0.9)), measure.Milliseconds(s.Quantile(1)))
	}
}

// On containerd, a stuck container blocks every list. Deaths in other pods are still reported. With
// exit events, they are reported at once; without exit events, after a few relist periods. Within
// five seconds, the health report names the stuck pod. When the container is released, the health
// report lists no problem any more.
func TestDeathsBesideAStuckContainer(t *testing.T) {
	const pods = 8
	for name, exitEvents := range map[string]bool{"with exit events": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			n := newBareNode(t)
			locks := n.daemon.Runtime().LocksStatuses
			stuck := n.run(n.runPod("stuck"), testnode.Container{Name: "a", Command: testnode.Sleep()})
			ids, pids := make([]string, pods), make([]int, pods)
			for i := range pods {
				ids[i] = n.run(n.runPod(fmt.Sprint("b", i)), testnode.Container{Name: "b", Command: testnode.ExitOnSignal(i)})
				var err error
				pids[i], err = n.client.Pid(n.ctx, ids[i])
				n.must(err)
			}
			w := n.newWatcher(exitEvents)
			heal := n.blockUpdate(stuck)
			began := time.Now()
			if locks {
				n.eventually("the suspect", func() string {
					relist := w.generator.HealthReport().StuckRelist
					if relist == nil || len(relist.Suspects) != 1 || relist.Suspects[0].Name != "stuck" {
						return fmt.Sprintf("%+v", relist)
					}
					return ""
				})
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the suspect is named after %v", took)
				}
			}
			var delivered measure.Samples
			for i, id := range ids {
				n.signalPid(pids[i], unix.SIGUSR1)
				e := w.next(pleg.ContainerDied, id)
				if e.Status == nil || e.Status.ExitCode != i {
					t.Errorf("the death of %.12s has %+v", id, e.Status)
				}
				delivered = append(delivered, e.at.Sub(e.Status.FinishedAt))
			}
			heal()
			healed := time.Now()
			n.eventually("the end", func() string {
				if r := w.generator.HealthReport(); r.StuckRelist != nil || len(r.FailingPods) > 0 || len(r.UnconfirmedExits) > 0 {
					return fmt.Sprintf("%+v", r)
				}
				return ""
			})
			t.Logf("end → ContainerDied, of %d: p50 %s, p90 %s, max %s; as before %v after the end", pods,
				measure.Milliseconds(delivered.Quantile(0.5)), measure.Milliseconds(delivered.Quantile(0.9)),
				measure.Milliseconds(delivered.Quantile(1)), time.Since(healed).Round(time.Millisecond))
			// This limit is wide enough for a busy machine.
			if bound := 10 * time.Second; delivered.Quantile(0.9) > bound {
				t.Errorf("p90 is %v", delivered.Quantile(0.9))
			}
			time.Sleep(3 * time.Second) // a second report of a death would have come by now
			w.eachDiedOnce()
		})
	}
}
