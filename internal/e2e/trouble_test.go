package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// listCalls are the calls of a full list, with and without streaming lists.
var listCalls = []string{"ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers"}

// If the runtime is stuck, the generator becomes unhealthy, names the stuck call, and sends no
// false events. Its readers can be cancelled. When the runtime continues, the generator reports
// everything that happened in between.
func TestRuntimeIsFrozen(t *testing.T) {
	const threshold = 2 * time.Second
	n := newNode(t, pleg.WithRelistThreshold(threshold))
	pod := n.runPod("frozen")
	victim := n.run(pod, testnode.Container{Name: "victim", Command: testnode.ExitOnSignal(7)})
	survivor := n.run(pod, testnode.Container{Name: "survivor", Command: testnode.Sleep()})
	n.await(victim, started)
	n.await(survivor, started)
	pid, err := n.client.Pid(n.ctx, victim)
	n.must(err)

	n.must(n.daemon.Freeze())
	n.signalPid(pid, unix.SIGUSR1)
	var unhealthy error
	n.eventually("being unhealthy", func() string {
		ok, err := n.pleg.Healthy()
		if ok {
			return "healthy"
		}
		unhealthy = err
		return ""
	})
	if text := unhealthy.Error(); !strings.HasPrefix(text, "pleg was last seen active ") ||
		!strings.Contains(text, "; threshold is "+threshold.String()) {
		t.Errorf("Healthy's error begins %q; want the kubelet's words", text)
	}
	// While the runtime is stuck, the error must at some point name the stuck call.
	n.eventually("naming the call", func() string {
		_, err := n.pleg.Healthy()
		if err == nil {
			return "healthy again"
		}
		for _, call := range listCalls {
			if strings.Contains(err.Error(), call) {
				t.Log("Healthy says:", err)
				return ""
			}
		}
		return err.Error()
	})
	ctx, cancel := context.WithTimeout(n.ctx, 200*time.Millisecond)
	if _, _, err := n.cache.LookupNewerThan(ctx, pod.UID, time.Now()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a reader of a stuck runtime got the error %v", err)
	}
	cancel()
	if got := n.journal.types(victim); len(got) != 1 {
		t.Errorf("events %v of a container whose death nobody could see", got)
	}

	n.must(n.daemon.Thaw())
	n.awaitHealthy()
	n.await(victim, started, died)
	if s := n.container(pod.UID, victim); s.ExitCode != 7 {
		t.Errorf("exit code %d, want 7", s.ExitCode)
	}
	n.relistTwice()
	n.await(survivor, started)
	n.await(pod.SandboxID, started)
}

// If the runtime is killed and started again, only containers that died in between are reported as
// dead. Containers that start later are reported as usual.
func TestRuntimeIsKilled(t *testing.T) {
	for _, how := range []struct {
		name string
		end  func(*testnode.Daemon) error
	}{
		{"crash", (*testnode.Daemon).Kill},
		{"upgrade", (*testnode.Daemon).Terminate},
	} {
		t.Run(how.name, func(t *testing.T) {
			n := newNode(t, pleg.WithRelistThreshold(2*time.Second))
			pod := n.runPod("outlives")
			victim := n.run(pod, testnode.Container{Name: "victim", Command: testnode.ExitOnSignal(5)})
			survivor := n.run(pod, testnode.Container{Name: "survivor", Command: testnode.Sleep()})
			n.await(victim, started)
			n.await(survivor, started)
			pid, err := n.client.Pid(n.ctx, victim)
			n.must(err)

			n.must(how.end(n.daemon))
			n.signalPid(pid, unix.SIGUSR1)
			n.eventually("being unhealthy", func() string {
				if ok, err := n.pleg.Healthy(); ok {
					return "healthy"
				} else if !strings.HasPrefix(err.Error(), "pleg was last seen active ") {
					t.Fatal("Healthy says:", err)
				}
				return ""
			})
			// The cache still shows the last state of the pods.
			if s, err := n.cache.Get(pod.UID); err != nil || len(s.ContainerStatuses) != 2 {
				t.Errorf("with the runtime gone the cache says %+v, %v", s, err)
			}
			if got := n.journal.len(); got != 3 {
				t.Errorf("%d events with the runtime gone, want the three from before:\n%s", got, n.journal)
			}

			n.must(n.daemon.Restart(n.ctx))
			n.awaitHealthy()
			n.await(victim, started, died)
			s := n.container(pod.UID, victim)
			if forgotten := n.daemon.Runtime().ForgottenExit; s.State != pleg.ContainerStateExited || s.ExitCode != 5 &&
				(s.ExitCode != forgotten || forgotten == 0) {
				t.Errorf("after the restart: %+v", *s)
			}
			after := n.run(pod, testnode.Container{Name: "after", Command: testnode.Sleep()})
			n.await(after, started)
			n.relistTwice()
			n.await(survivor, started)
			n.await(pod.SandboxID, started)
		})
	}
}

// relistTwice runs two full relists. After them, all events up to now have been delivered.
func (n *node) relistTwice() {
	n.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.pleg.Relist(n.t.Context())
		_ = n.pleg.Relist(n.t.Context())
	}()
	select {
	case <-done:
	case <-time.After(patience):
		n.t.Fatal("two relists do not come to an end")
	}
}

var manyPods = flag.Int("many.pods", 150, "pods of TestManyPods")

// 150 pods are more than the kubelet's usual limit. All of them are listed and reported, each once.
// While the node is idle, no events come.
func TestManyPods(t *testing.T) {
	pods := *manyPods
	n := newNode(t)
	var (
		mu    sync.Mutex
		ids   = make(map[string]bool)
		group errgroup.Group
	)
	group.SetLimit(4)
	for i := range pods {
		group.Go(func() error {
			pod, err := n.client.RunPod(n.ctx, "e2e", fmt.Sprintf("pod-%03d", i))
			if err != nil {
				return err
			}
			id, err := n.client.Run(n.ctx, pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
			mu.Lock()
			defer mu.Unlock()
			ids[pod.SandboxID], ids[id] = true, true
			return err
		})
	}
	n.must(group.Wait())
	n.relistTwice()
	n.eventually("an event of everything", func() string {
		if got := len(n.journal.ids()); got < len(ids) {
			return fmt.Sprintf("%d of %d", got, len(ids))
		}
		return ""
	})
	for name, labels := range map[string]string{
		"kubelet_running_pods": "", "kubelet_running_containers": "container_state=running",
	} {
		if got := n.meters.sum(t, name, labels); int(got) != pods {
			t.Errorf("%s is %v, want %d", name, got, pods)
		}
	}
	if got := len(n.cache.GetAll()); got != pods {
		t.Errorf("%d pods in the cache, want %d", got, pods)
	}
	n.relistTwice()
	for id := range n.journal.ids() {
		if !ids[id] {
			t.Errorf("an event of %.12s, which the test did not make", id)
		}
		if got := n.journal.types(id); len(got) != 1 || got[0] != started {
			t.Errorf("events %v of %.12s, want one Started", got, id)
		}
	}
}
