package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// If a container dies while runc is stuck in deleting it, the exit event still reports the death at
// once. A period later, the metric and the health report show the unconfirmed exit, until runc
// continues. In the last round, the deletion is stuck for 30 seconds. During this time, containerd
// gives up the deletion and tries again. Sometimes the exit event is late, too: see
// TestExitWithoutDeletion.
func TestUnconfirmedExit(t *testing.T) {
	const deaths, hangs = 5, 30 * time.Second
	n := newBareNode(t)
	late := n.daemon.Runtime().LateExits
	m := newMeters()
	w := n.newWatcher(true, pleg.WithRegisterer(m))
	unconfirmed := func() string {
		return fmt.Sprintf("%v, %+v", m.sum(t, "pleg_exits_unconfirmed"), w.generator.HealthReport().UnconfirmedExits)
	}
	none := unconfirmed()
	pod := n.runPod("slow")
	var delivered measure.Samples
	for i := range deaths {
		name := fmt.Sprint("c", i)
		id := n.run(pod, testnode.Container{Name: name, Command: testnode.ExitOnSignal(3)})
		w.next(pleg.ContainerStarted, id)
		pid, err := n.client.Pid(n.ctx, id)
		n.must(err)
		f := n.blockRunc("delete", id)
		n.signalPid(pid, unix.SIGUSR1)
		e := w.next(pleg.ContainerDied, id)
		if e.Status == nil || e.Status.ExitCode != 3 || late && !e.Status.Unconfirmed {
			t.Fatalf("the death has %+v", e.Status)
		}
		delivered = append(delivered, e.at.Sub(e.Status.FinishedAt))
		known := func() *pleg.Status {
			status, err := w.cache.Get(types.UID(pod.UID))
			n.must(err)
			return containerIn(status, id)
		}
		if late {
			var said []pleg.UnconfirmedExit
			n.eventually("the exit in the report", func() string {
				if said = w.generator.HealthReport().UnconfirmedExits; len(said) == 0 {
					return "none"
				}
				return ""
			})
			want := pleg.UnconfirmedExit{PodUID: pod.UID, Namespace: "e2e", Name: "slow", Container: name,
				ContainerID: id, ExitCode: 3, Since: said[0].Since}
			if len(said) != 1 || said[0] != want {
				t.Errorf("the report has %+v, want %+v", said, want)
			}
			n.eventually("the exit in the metric", func() string {
				if got := m.sum(t, "pleg_exits_unconfirmed"); got != 1 {
					return fmt.Sprint(got)
				}
				return ""
			})
			for end := e.at.Add(hangs); i == deaths-1 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if s := known(); s.State != pleg.ContainerStateExited || !s.Unconfirmed || s.ExitCode != 3 {
					t.Fatalf("%v after the death the cache has %+v", time.Since(e.at), s)
				}
				if got := m.sum(t, "pleg_exits_unconfirmed"); got != 1 {
					t.Fatalf("%v after the death the metric is %v", time.Since(e.at), got)
				}
				if ok, err := w.generator.Healthy(); !ok {
					t.Fatalf("%v after the death: %v", time.Since(e.at), err)
				}
			}
		}
		n.must(f.Heal())
		healed := time.Now()
		n.eventually("the runtime's status", func() string {
			if s := known(); s.State != pleg.ContainerStateExited || s.Unconfirmed || s.ExitCode != 3 {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
		n.eventually("the end", func() string {
			if is := unconfirmed(); is != none {
				return is
			}
			return ""
		})
		t.Logf("end → ContainerDied %v; runc goes on → confirmed %v", delivered[i], time.Since(healed))
	}
	w.eachDiedOnce()
	t.Logf("end → ContainerDied: p50 %s, max %s", measure.Milliseconds(delivered.Quantile(0.5)),
		measure.Milliseconds(delivered.Quantile(1)))
	// This limit is wide enough for a busy machine.
	if p50 := delivered.Quantile(0.5); p50 > time.Second {
		t.Errorf("p50 is %v", p50)
	}
}
