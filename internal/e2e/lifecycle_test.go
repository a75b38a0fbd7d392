package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

const (
	started = pleg.ContainerStarted
	died    = pleg.ContainerDied
	removed = pleg.ContainerRemoved
)

// A container may complete, fail or be killed. In each case its events come in order. When the
// event of its death comes, the cache already contains the exit code and the reason.
func TestContainersLiveAndDie(t *testing.T) {
	n := newNode(t)
	pod := n.runPod("lives")
	n.await(pod.SandboxID, started)

	for _, c := range []struct {
		name   string
		code   int
		reason string
		signal unix.Signal
	}{
		{name: "completes", code: 0, reason: "Completed", signal: unix.SIGUSR1},
		{name: "fails", code: 3, reason: "Error", signal: unix.SIGUSR1},
		{name: "killed", code: 137, reason: "Error", signal: unix.SIGKILL},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := testnode.Container{Name: c.name, Command: testnode.ExitOnSignal(c.code)}
			id := n.run(pod, spec)
			n.await(id, started)

			s := n.container(pod.UID, id)
			if s.State != pleg.ContainerStateRunning || s.Name != c.name || s.RestartCount != 0 || s.Hash != spec.Hash() ||
				s.StartedAt.IsZero() || !s.FinishedAt.IsZero() || s.Image != testnode.BusyboxImage {
				t.Errorf("status of the running container: %+v", *s)
			}
			before := time.Now().Add(-n.daemon.Runtime().EarlyBy)
			n.signal(id, c.signal)
			n.await(id, started, died)

			e := n.journal.event(id, died)
			if s = containerIn(e.status, id); s == nil {
				t.Fatal("the container is not in the cache when its death is reported")
			}
			if s.State != pleg.ContainerStateExited || s.ExitCode != c.code || s.Reason != c.reason {
				t.Errorf("at the event: state %s, exit code %d, reason %s; want exited, %d, %s", s.State, s.ExitCode, s.Reason,
					c.code, c.reason)
			}
			if s.FinishedAt.Before(before) || s.FinishedAt.After(e.at) {
				t.Errorf("finished at %v; want between the signal at %v and the event at %v", s.FinishedAt, before, e.at)
			}
			if e.Pod.Name != "lives" || e.Pod.Namespace != "e2e" || e.ID != pod.UID || e.Container.Name != c.name ||
				e.IsSandbox() {
				t.Errorf("the event is about pod %s/%s %s, container %s, sandbox: %t", e.Pod.Namespace, e.Pod.Name, e.ID,
					e.Container.Name, e.IsSandbox())
			}
		})
	}
}

// If a container exits at once, it may end before any list shows it running. Its death is still
// reported, once.
func TestContainerThatExitsAtOnce(t *testing.T) {
	n := newNode(t)
	pod := n.runPod("short")
	for i := range 10 {
		id := n.run(pod, testnode.Container{Name: fmt.Sprintf("short-%d", i), Command: testnode.Exit(i)})
		n.eventually("the death of a short container", func() string {
			if !n.journal.has(id, died) {
				return "not reported"
			}
			return ""
		})
		if s := containerIn(n.journal.event(id, died).status, id); s == nil || s.ExitCode != i {
			t.Errorf("status at the event: %+v; want exit code %d", s, i)
		}
	}
}

// A container that was created but not started is in the cache. It has no events until it is
// removed.
func TestContainerThatIsNeverStarted(t *testing.T) {
	n := newNode(t)
	pod := n.runPod("created")
	id, err := n.client.Create(n.ctx, pod, testnode.Container{Name: "idle", Command: testnode.Sleep()})
	n.must(err)
	if s := n.container(pod.UID, id); s.State != pleg.ContainerStateCreated {
		t.Errorf("state %s, want created", s.State)
	}
	if got := n.journal.types(id); len(got) != 0 {
		t.Errorf("events %v, want none", got)
	}
	n.must(n.client.Remove(n.ctx, id))
	n.await(id, died, removed)
}

// If a container is restarted as the kubelet does it, both containers are in the status until the
// old one is removed. The new one has the same name and a higher restart count.
func TestContainerRestarts(t *testing.T) {
	n := newNode(t)
	pod := n.runPod("restarts")
	app := testnode.Container{Name: "app", Command: testnode.ExitOnSignal(1)}
	first := n.run(pod, app)
	n.await(first, started)
	n.signal(first, unix.SIGUSR1)
	n.await(first, started, died)

	app.Restarts = 1
	second := n.run(pod, app)
	n.await(second, started)
	s := n.status(pod.UID)
	if len(s.ContainerStatuses) != 2 {
		t.Fatalf("%d containers in the status, want both", len(s.ContainerStatuses))
	}
	a, b := containerIn(s, first), containerIn(s, second)
	if a.State != pleg.ContainerStateExited || a.ExitCode != 1 || a.RestartCount != 0 {
		t.Errorf("the first: %+v", *a)
	}
	if b.State != pleg.ContainerStateRunning || b.RestartCount != 1 || b.Name != "app" {
		t.Errorf("the second: %+v", *b)
	}

	n.must(n.client.Remove(n.ctx, first))
	n.await(first, started, died, removed)
	s = n.status(pod.UID)
	if len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].ID.ID != second {
		t.Errorf("after the removal the status has %d containers", len(s.ContainerStatuses))
	}
	n.await(second, started)
}

// If a pod is removed, its containers and its sandbox die and are removed. After that, the cache
// returns an empty status of the pod.
func TestPodIsRemoved(t *testing.T) {
	n := newNode(t)
	pod, other := n.runPod("goes"), n.runPod("stays")
	id := n.run(pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
	n.await(id, started)
	n.await(pod.SandboxID, started)
	if e := n.journal.event(pod.SandboxID, started); !e.IsSandbox() {
		t.Error("the sandbox's event does not say that it is about a sandbox")
	}

	n.must(n.client.StopPod(n.ctx, pod))
	n.await(id, started, died)
	n.await(pod.SandboxID, started, died)
	if s := n.container(pod.UID, id); s.ExitCode != 137 {
		t.Errorf("exit code %d, want 137", s.ExitCode)
	}

	n.must(n.client.RemovePod(n.ctx, pod))
	n.await(id, started, died, removed)
	n.await(pod.SandboxID, started, died, removed)
	if s := n.status(pod.UID); len(s.ContainerStatuses) != 0 || len(s.SandboxStatuses) != 0 {
		t.Errorf("a pod that is gone has the status %+v", *s)
	}
	if s, err := n.cache.Get(pod.UID); err != nil || len(s.SandboxStatuses) != 0 {
		t.Errorf("a pod that is gone is in the cache: %+v, %v", s, err)
	}
	if s := n.status(testnode.NewUID()); len(s.SandboxStatuses) != 0 {
		t.Errorf("a pod that never was has the status %+v", *s)
	}
	n.await(other.SandboxID, started)
}

// If a pod's sandbox dies and is replaced under the same UID, the status contains both sandboxes,
// the newest first. When the old sandbox is removed, only the new one is left.
func TestSandboxIsRecreated(t *testing.T) {
	n := newNode(t)
	pod := n.runPod("again")
	old := n.run(pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
	n.await(old, started)
	n.must(n.client.StopPod(n.ctx, pod))
	n.await(pod.SandboxID, started, died)

	again, err := n.client.RunPodAgain(n.ctx, pod)
	n.must(err)
	id := n.run(again, testnode.Container{Name: "app", Command: testnode.Sleep(), Restarts: 1})
	n.await(again.SandboxID, started)
	n.await(id, started)
	s := n.status(pod.UID)
	if len(s.SandboxStatuses) != 2 || s.SandboxStatuses[0].Id != again.SandboxID ||
		s.SandboxStatuses[1].Id != pod.SandboxID {
		t.Errorf("sandboxes %v, want the new one first and both", s.SandboxStatuses)
	}
	if len(s.ContainerStatuses) != 2 || len(s.ActiveContainerStatuses) != 1 || s.ActiveContainerStatuses[0].ID.ID != id {
		t.Errorf("%d containers, active %v; want 2, and only the new one active", len(s.ContainerStatuses),
			s.ActiveContainerStatuses)
	}

	n.must(n.client.RemovePod(n.ctx, pod))
	n.await(pod.SandboxID, started, died, removed)
	n.await(old, started, died, removed)
	n.await(id, started)
	if s := n.status(pod.UID); len(s.SandboxStatuses) != 1 || len(s.ContainerStatuses) != 1 {
		t.Errorf("%d sandboxes and %d containers are left, want one each", len(s.SandboxStatuses), len(s.ContainerStatuses))
	}
}

// If a generator starts on a used node, or a subscriber comes late, its first events describe the
// existing containers.
func TestLateSubscriberLearnsThePresent(t *testing.T) {
	n := newBareNode(t)
	pod := n.runPod("early")
	running := n.run(pod, testnode.Container{Name: "runs", Command: testnode.Sleep()})
	ended := n.run(pod, testnode.Container{Name: "ended", Command: testnode.Exit(4)})
	n.awaitExit(ended)
	n.watch()
	n.await(pod.SandboxID, started)
	n.await(running, started)
	n.await(ended, died)

	late := n.subscribe(1)
	n.eventually("the late subscriber's first events", func() string {
		if got := late.len(); got < 3 {
			return fmt.Sprintf("%d of 3", got)
		}
		return ""
	})
	for id, want := range map[string]pleg.PodLifeCycleEventType{pod.SandboxID: started, running: started, ended: died} {
		if got := late.types(id); len(got) != 1 || got[0] != want {
			t.Errorf("the late subscriber was sent %v of %.12s, want %s", got, id, want)
		}
	}
}
