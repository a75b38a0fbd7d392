package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// These tests cause the three most common faults of a node: a stuck container, an exit that the
// runtime does not finish, and a stopped shim. They show how runtimes behave then, without a
// generator.

// blockRunc blocks a command of runc until the fault is healed or the test ends. If id is empty, it
// blocks the command for all containers, and otherwise for one.
func (n *node) blockRunc(command, id string) *testnode.RuncFault {
	n.t.Helper()
	return n.injectRunc(n.daemon.BlockRunc(command, id))
}

// failRunc makes a command of runc fail. Its arguments are those of blockRunc.
func (n *node) failRunc(command, id string) *testnode.RuncFault {
	n.t.Helper()
	return n.injectRunc(n.daemon.FailRunc(command, id))
}

func (n *node) injectRunc(f *testnode.RuncFault, err error) *testnode.RuncFault {
	n.t.Helper()
	n.must(err)
	n.t.Cleanup(func() {
		if err := f.Heal(); err != nil {
			n.t.Error(err)
		}
	})
	return f
}

// awaitMet waits until runc has run into a fault.
func (n *node) awaitMet(f *testnode.RuncFault) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !f.Met(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatal("the runtime does not run into the fault of runc")
		}
	}
}

// blockUpdate blocks a change of a running container's resources, as a stuck shim or kernel would: see
// Runtime.LocksStatuses. The function heal lets the change continue, and waits for its end. It also
// runs at the end of the test.
func (n *node) blockUpdate(id string) (heal func()) {
	n.t.Helper()
	f := n.blockRunc("update", id)
	changed := make(chan error, 1)
	go func() {
		_, err := n.client.UpdateContainerResources(context.WithoutCancel(n.ctx), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		changed <- err
	}()
	heal = sync.OnceFunc(func() {
		if err := errors.Join(f.Heal(), <-changed); err != nil {
			n.t.Errorf("the change of container %.12s's resources: %v", id, err)
		}
	})
	n.t.Cleanup(heal)
	n.awaitMet(f)
	return heal
}

// stopShim stops the shim of a running container until resume is called or the test ends. A stopped
// shim does not reap its container.
func (n *node) stopShim(id string) (resume func()) {
	n.t.Helper()
	pid, err := n.client.Shim(n.ctx, id)
	n.must(err)
	n.must(unix.Kill(pid, unix.SIGSTOP))
	resume = sync.OnceFunc(func() {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			n.t.Error("resuming the shim:", err)
		}
	})
	n.t.Cleanup(resume)
	return resume
}

// long is the time after which an unanswered call counts as stuck. A normal answer takes a
// hundredth of it.
const long = time.Second

// calls are calls to the runtime, by their names in a test.
type calls map[string]func(context.Context) error

// stuck makes the calls in parallel. For each call, it returns true if the call is stuck.
func (n *node) stuck(all calls) map[string]bool {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, long)
	defer cancel()
	var mu sync.Mutex
	var made sync.WaitGroup
	stuck := make(map[string]bool)
	for what, call := range all {
		made.Go(func() {
			err := call(ctx)
			mu.Lock()
			defer mu.Unlock()
			if stuck[what] = status.Code(err) == codes.DeadlineExceeded; err != nil && !stuck[what] {
				n.t.Errorf("%s: %v", what, err)
			}
		})
	}
	made.Wait()
	return stuck
}

func (n *node) listOf(f *runtimeapi.ContainerFilter) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := n.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: f})
		return err
	}
}

func (n *node) statusOf(id string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := n.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		return err
	}
}

// wants checks the state of a container in its status and in a list.
func (n *node) wants(id string, want runtimeapi.ContainerState) {
	n.t.Helper()
	r, err := n.client.ContainerStatus(n.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	n.must(err)
	filter := &runtimeapi.ContainerFilter{Id: id}
	l, err := n.client.ListContainers(n.ctx, &runtimeapi.ListContainersRequest{Filter: filter})
	n.must(err)
	if len(l.Containers) != 1 || r.Status.State != want || l.Containers[0].State != want {
		n.t.Errorf("the status is %s, and the list %v; want %s", r.Status.State, l.Containers, want)
	}
}

// awaitReport waits until the exit of a container is reported. It returns the exit and the time of
// the report.
func (n *node) awaitReport(reported *reportedExits, id string) (exit pleg.ContainerExit, at time.Time) {
	n.t.Helper()
	n.eventually("the exit", func() string {
		if len(reported.of(id)) == 0 {
			return "not reported"
		}
		return ""
	})
	reported.mu.Lock()
	defer reported.mu.Unlock()
	return reported.exits[id][0], reported.first[id]
}

// eventOf returns the time of CRI's own event of a container's end; zero if no event has come.
func (e *reportedExits) eventOf(id string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ends[id]
}

// If runc is stuck while it changes a container's resources, containerd answers no list of
// containers, whatever its filter, and sends no CRI event of any container. It still answers
// statuses of other containers, lists and statuses of sandboxes, and sends its own exit events.
func TestStuckContainer(t *testing.T) {
	n := newBareNode(t)
	promised := n.daemon.Runtime()
	reported := n.watchExits(promised.Events)
	podA, podB := n.runPod("a"), n.runPod("b")
	a := n.run(podA, testnode.Container{Name: "stuck", Command: testnode.Sleep()})
	b := n.run(podB, testnode.Container{Name: "dies", Command: testnode.ExitOnSignal(3)})
	pid, err := n.client.Pid(n.ctx, b)
	n.must(err)

	heal := n.blockUpdate(a)
	began := time.Now()
	n.signalPid(pid, unix.SIGUSR1)
	n.awaitExit(b)
	shown := time.Now()
	exit, at := n.awaitReport(reported, b)
	if exit.ExitCode != 3 {
		t.Errorf("reported is %+v", exit)
	}
	lists := calls{
		"a list of all":                     n.listOf(nil),
		"a list of the other pod":           n.listOf(&runtimeapi.ContainerFilter{PodSandboxId: podB.SandboxID}),
		"a list of the other":               n.listOf(&runtimeapi.ContainerFilter{Id: b}),
		"the status of the stuck container": n.statusOf(a),
	}
	others := calls{
		"the status of the other": n.statusOf(b),
		"the list of sandboxes": func(ctx context.Context) error {
			_, err := n.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return err
		},
		"the status of the stuck container's sandbox": func(ctx context.Context) error {
			_, err := n.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: podA.SandboxID})
			return err
		},
	}
	for what, hangs := range n.stuck(lists) {
		if hangs != promised.LocksStatuses {
			t.Errorf("%s is stuck: %t", what, hangs)
		}
	}
	for what, hangs := range n.stuck(others) {
		if hangs {
			t.Errorf("%s is stuck", what)
		}
	}
	event := "none"
	awaitEvent := func() {
		n.eventually("CRI's event of the other's end", func() string {
			if reported.eventOf(b).IsZero() {
				return "none"
			}
			return ""
		})
		event = fmt.Sprint(reported.eventOf(b).Sub(exit.FinishedAt))
	}
	switch at := reported.eventOf(b); {
	case promised.Events && !promised.LocksStatuses:
		awaitEvent()
	case !at.IsZero():
		t.Errorf("CRI's event of the other's end came at %v", at)
	}
	heal()
	healed := time.Now()
	for what, hangs := range n.stuck(lists) {
		if hangs {
			t.Errorf("%s is still stuck", what)
		}
	}
	if promised.Events {
		awaitEvent()
	}
	t.Logf("stuck for %v; the other's end → its exit event %v, → its status %v, → CRI's event %s",
		healed.Sub(began), at.Sub(exit.FinishedAt), shown.Sub(exit.FinishedAt), event)
}

// If a container exits and runc's deletion of it is stuck or fails, containerd's own exit event
// comes at once. But CRI shows the container as running until the deletion ends or is tried again.
// Sometimes the exit event is late, too, by as long as the deletion takes. The reason: the shim
// reports the exit to CRI before it sends the exit event. In between, the shim writes a file and
// takes a lock, which the deletion may hold.
func TestExitWithoutDeletion(t *testing.T) {
	for what, inject := range map[string]func(n *node, id string) *testnode.RuncFault{
		"hangs": func(n *node, id string) *testnode.RuncFault { return n.blockRunc("delete", id) },
		"fails": func(n *node, id string) *testnode.RuncFault { return n.failRunc("delete", id) },
	} {
		t.Run(what, func(t *testing.T) {
			n := newBareNode(t)
			promised := n.daemon.Runtime()
			reported := n.watchExits(promised.Events)
			pod := n.runPod("slow")
			id := n.run(pod, testnode.Container{Name: "dies", Command: testnode.ExitOnSignal(3)})
			f := inject(n, id)
			signalled := time.Now()
			n.signal(id, unix.SIGUSR1)
			exit, at := n.awaitReport(reported, id)
			if exit.ExitCode != 3 {
				t.Errorf("reported is %+v", exit)
			}
			if promised.LateExits {
				n.awaitMet(f)
				time.Sleep(long)
				n.wants(id, runtimeapi.ContainerState_CONTAINER_RUNNING)
				if at := reported.eventOf(id); !at.IsZero() {
					t.Errorf("CRI's event came at %v", at)
				}
				n.must(f.Heal())
			}
			healed := time.Now()
			n.awaitExit(id)
			n.wants(id, runtimeapi.ContainerState_CONTAINER_EXITED)
			r, err := n.client.ContainerStatus(n.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			n.must(err)
			// Each of these times has a different source: the kernel, the shim or the runtime.
			end, earliest := time.Unix(0, r.Status.FinishedAt), signalled.Add(-promised.EarlyBy)
			if end.Before(earliest) || exit.FinishedAt.Before(earliest) || exit.FinishedAt.After(at) {
				t.Errorf("signalled at %v; the exit: %v, reported at %v; the status: %v", signalled, exit.FinishedAt, at, end)
			}
			if f.Met() != promised.LateExits {
				t.Errorf("runc was to delete the container: %t", f.Met())
			}
			t.Logf("end → exit event %v; healed → the status %v", at.Sub(exit.FinishedAt), time.Since(healed))
		})
	}
}

// If a container dies while its shim is stopped, no process reaps it. So nothing reports its death,
// and the runtime shows it as running. When the shim continues, it reports the exit. The exit's
// time is then the time of the reaping.
func TestStoppedShim(t *testing.T) {
	n := newBareNode(t)
	reported := n.watchExits(false)
	pod := n.runPod("stopped")
	id := n.run(pod, testnode.Container{Name: "dies", Command: testnode.Sleep()})
	pid, err := n.client.Pid(n.ctx, id)
	n.must(err)
	resume := n.stopShim(id)
	n.must(unix.Kill(pid, unix.SIGKILL))
	time.Sleep(long)
	n.wants(id, runtimeapi.ContainerState_CONTAINER_RUNNING)
	if exits := reported.of(id); len(exits) > 0 {
		t.Errorf("reported are %+v", exits)
	}
	resumed := time.Now()
	resume()
	exit, at := n.awaitReport(reported, id)
	n.awaitExit(id)
	if exit.ExitCode != 137 || exit.FinishedAt.Before(resumed.Add(-n.daemon.Runtime().EarlyBy)) {
		t.Errorf("reported is %+v; the shim was resumed at %v", exit, resumed)
	}
	t.Logf("resumed → end %v, → exit event %v, → the status %v", exit.FinishedAt.Sub(resumed), at.Sub(resumed),
		time.Since(resumed))
}
