package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// Containers that end before, during and after an outage of the runtime are reported once, with the code
// that they ended with, and it stays so, also where the runtime shows 255 "Unknown" afterwards.
func TestExitsWhileTheRuntimeIsAway(t *testing.T) {
	n := newBareNode(t)
	w := n.newWatcher(true)
	const rounds = 4
	lost := 0
	for round := range rounds {
		pod := n.runPod(fmt.Sprint("away", round))
		type run struct {
			id        string
			pid, code int
			signal    unix.Signal
		}
		var runs []run
		for i, code := range []int{0, 42, 137, 0, 42, 137, 0, 42, 137} {
			r := run{code: code, signal: unix.SIGUSR1}
			if code == 137 {
				r.signal = unix.SIGKILL
			}
			r.id = n.run(pod, testnode.Container{Name: fmt.Sprint("c", i), Command: testnode.ExitOnSignal(code)})
			var err error
			r.pid, err = n.client.Pid(n.ctx, r.id)
			n.must(err)
			w.next(pleg.ContainerStarted, r.id)
			runs = append(runs, r)
		}
		end := func(when string, some []run) {
			for _, r := range some {
				n.signalPid(r.pid, r.signal)
				if e := w.next(pleg.ContainerDied, r.id); e.Status == nil || e.Status.ExitCode != r.code {
					t.Errorf("%s: the death of %.12s has %+v, want the code %d", when, r.id, e.Status, r.code)
				}
			}
		}
		end("before", runs[:3])
		if round%2 == 0 {
			n.must(n.daemon.Kill())
		} else {
			n.must(n.daemon.Terminate())
		}
		end("away", runs[3:6])
		n.must(n.daemon.Restart(n.ctx))
		end("after", runs[6:])
		time.Sleep(3 * time.Second) // the runtime's own statuses come, and late reasons
		n.must(w.generator.Relist(n.ctx))
		status, err := w.cache.Get(types.UID(pod.UID))
		n.must(err)
		for i, r := range runs {
			s := containerIn(status, r.id)
			if s == nil || s.State != pleg.ContainerStateExited || s.ExitCode != r.code || s.Reason == "Unknown" {
				t.Errorf("container %d: the cache has %+v, want the code %d", i, s, r.code)
			}
			shown, err := n.client.ContainerStatus(n.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: r.id})
			n.must(err)
			if int(shown.Status.ExitCode) != r.code {
				lost++
			}
		}
		n.must(n.client.StopPod(n.ctx, pod))
	}
	w.eachDiedOnce()
	t.Logf("of %d containers, the runtime has lost the codes of %d", rounds*9, lost)
}
