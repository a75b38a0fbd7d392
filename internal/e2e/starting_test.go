package e2e_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// Containers end while the runtime starts. CRI-O then misses some ends: see Runtime.MissesExits. Each
// end is reported once, with its exit code, also to a generator that starts afterwards.
func TestExitsWhileTheRuntimeStarts(t *testing.T) {
	n := newBareNode(t)
	before := n.newWatcher(true)
	pod := n.runPod("starting")
	all := n.runMortals(pod, 1, 10)[0]
	before.hasAll(pod, all, func(_ *mortal, s *pleg.Status) bool { return s.State == pleg.ContainerStateRunning })
	n.must(n.daemon.Kill())
	var joined sync.WaitGroup
	joined.Go(func() { n.endAll(all, 1500*time.Millisecond) })
	err := n.daemon.Restart(n.ctx)
	joined.Wait()
	n.must(err)
	n.must(n.client.WaitReady(n.ctx)) // the connection may wait before it tries again
	hasEnded := func(m *mortal, s *pleg.Status) bool {
		return s.State == pleg.ContainerStateExited && s.ExitCode == m.code && s.Reason != "Unknown"
	}
	before.hasAll(pod, all, hasEnded)
	watchers := []*watcher{before}
	runtime, missed := n.daemon.Runtime(), 0
	for _, m := range all {
		deadline := time.Now().Add(patience)
		if runtime.MissesExits {
			deadline = time.Now().Add(time.Second)
		}
		if s := n.lastStatus(m.id, deadline); s.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			missed++
		}
	}
	t.Logf("%s missed %d of %d ends", runtime.Name, missed, len(all))
	if runtime.MissesExits {
		watchers = append(watchers, n.newWatcher(true)) // containerd has lost the codes by now
		watchers[1].hasAll(pod, all, hasEnded)
		n.must(n.daemon.Kill())
		n.must(n.daemon.Restart(n.ctx))
		missed = 0
	}
	for _, w := range watchers {
		w.hasAll(pod, all, func(m *mortal, s *pleg.Status) bool {
			return hasEnded(m, s) && (!s.Unconfirmed || runtime.LosesExits)
		})
		w.eachDiedOnce()
		if len(w.deaths) != len(all) {
			t.Errorf("%d of %d have died", len(w.deaths), len(all))
		}
	}
	if missed > 0 && !runtime.LosesExits {
		t.Errorf("%s shows %d ended containers as running", runtime.Name, missed)
	}
}

// hasAll waits until the statuses of all containers in the cache are as asked for.
func (w *watcher) hasAll(pod *testnode.Pod, all []*mortal, as func(*mortal, *pleg.Status) bool) {
	w.t.Helper()
	w.eventually("the statuses", func() string {
		status, err := w.cache.Get(pod.UID)
		if err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(all, func(m *mortal) bool {
			s := status.FindContainerStatusByID(m.id)
			return s == nil || !as(m, s)
		})
		if i >= 0 {
			return fmt.Sprintf("%+v", status.FindContainerStatusByID(all[i].id))
		}
		return ""
	})
}
