package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

// The runtime counts as down when no call has shown it ready for 30 seconds. A runtime that reports
// that it is not ready and a failed health check count at once.
func TestRuntimeState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runtimeState{clock: clock.RealClock{}}
		sick := false
		s.addHealthCheck("PLEG", func() (bool, error) { return !sick, errOnPurpose })
		want := func(want string) {
			t.Helper()
			if got := fmt.Sprint(s.runtimeErrors()); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		const healthy, down = "<nil>", "container runtime is down: on purpose"
		want("the container runtime's status is not known yet")
		s.setRuntimeStatus(errOnPurpose)
		want(down)
		s.setRuntimeStatus(nil)
		want(healthy)
		time.Sleep(29 * time.Second)
		s.setRuntimeStatus(errOnPurpose)
		want(healthy)
		time.Sleep(time.Second)
		want(down)
		sick = true
		want("[" + down + ", PLEG is not healthy: on purpose]")
		sick = false
		s.setRuntimeStatus(fmt.Errorf("%w: Broken", runtime.ErrNotReady))
		want("the runtime is not ready: Broken")
		s.setRuntimeStatus(errOnPurpose) // shows nothing new
		want("the runtime is not ready: Broken")
		s.setRuntimeStatus(nil)
		want(healthy)
		time.Sleep(30 * time.Second)
		want("container runtime is down: it does not answer a call for its status")
	})
}

// While there are runtime errors, the syncLoop looks again after 100 ms, and then after twice as
// long each time, up to 5 s. Once there is no error, the back-off begins again.
func TestSyncLoopBacksOff(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.stop()
		var failing bool      // guarded by n.mu
		var looks []time.Time // guarded by n.mu
		n.prepare = func(a *Agent) {
			a.runtimeState.addHealthCheck("test", func() (bool, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				if failing {
					looks = append(looks, time.Now())
				}
				return !failing, errOnPurpose
			})
		}
		set := func(fails bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			failing = fails
		}
		n.start()
		n.agent.SetPods(nil)
		n.wait(10 * time.Second)
		for range 2 {
			looks = nil
			set(true)
			n.wait(30 * time.Second)
			set(false)
			n.wait(10 * time.Second)
			var waits []time.Duration
			for i := range looks[1:] {
				waits = append(waits, looks[i+1].Sub(looks[i]))
			}
			const ms = time.Millisecond
			want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}
			if len(waits) < len(want) || !slices.Equal(waits[:len(want)], want) {
				t.Errorf("waited %v, want %v", waits, want)
			}
		}
		if lines := strings.Join(n.lines(), "\n"); strings.Count(lines, "Skipping pod synchronization") != 2 ||
			strings.Count(lines, "Pods are synchronized again") != 2 {
			t.Errorf("the log is %s", lines)
		}
	})
}

// While the calls for the runtime's status fail, pods are synced for another 30 seconds, and then no
// longer. When a call succeeds, a pod that was skipped is synced, although nothing else happens.
func TestGraceOfRuntime(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", always))
		heal := n.server.Fail("Status", "", errOnPurpose)
		n.wait(25 * time.Second)
		n.kill("web")
		n.wait(2 * time.Second)
		n.want("a", "Running Ready; web 1 running after Error(137)")
		n.wait(10 * time.Second)
		n.kill("web")
		n.wait(time.Minute)
		if len(n.notes()) != 4 { // two starts and two ends
			t.Errorf("%q", n.notes())
		}
		if err := n.agent.runtimeState.runtimeErrors(); err == nil || !strings.Contains(err.Error(),
			"container runtime is down: asking for the runtime's status: ") {
			t.Error(err)
		}
		heal()
		n.wait(11 * time.Second)
		n.want("a", "Running Ready; web 2 running after Error(137)")
	})
}
