package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// lossy is a runtime that loses the exit codes of containers. A status shows an exit code as
// unknown until the exit is older than the field lost. From then on, the status shows the code, as
// if a witness had reported it.
type lossy struct {
	*cri.Runtime
	lost time.Duration
}

func (l lossy) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	status, err := l.Runtime.GetPodStatus(ctx, pod)
	if err != nil {
		return nil, err
	}
	for _, list := range [][]*pleg.Status{status.ContainerStatuses, status.ActiveContainerStatuses} {
		for i, s := range list {
			if s.State == pleg.ContainerStateExited && time.Since(s.FinishedAt) < l.lost {
				unknown := *s
				unknown.ExitCode, unknown.Reason, unknown.EndUnknown = 255, "Unknown", true
				list[i] = &unknown
			}
		}
	}
	return status, nil
}

// If the runtime has lost an exit code, the agent waits up to 10 s before it acts on the exit,
// because a witness may still report the code. If a container restarts after any exit code, the
// agent restarts the container at once.
func TestLostEnd(t *testing.T) {
	const (
		runs, done = "Running Ready; c 0 running", "Succeeded; c 0 Completed(0)"
		failed     = "Failed; c 0 Unknown(255)"
		crashing   = "Running; c 2 CrashLoopBackOff after Completed(0)"
		job        = "  containers: [{name: c, image: exit, imagePullPolicy: Never, args: ['0', '1s']}]\n"
		init       = "  initContainers: [{name: i, image: exit, imagePullPolicy: Never, args: ['0', '1s']}]\n" + always
		initDone   = "Running Ready; i 0 Completed(0); web 0 running"
	)
	for _, c := range []struct {
		name, spec        string
		lost              time.Duration
		soon, later, last string // the status after 2 s, 8 s and 14 s
		starts            int
	}{
		{"Never", "  restartPolicy: Never\n" + job, 1500 * time.Millisecond, runs, done, done, 1},
		{"Never, late", "  restartPolicy: Never\n" + job, 5 * time.Second, runs, done, done, 1},
		{"Never, unseen", "  restartPolicy: Never\n" + job, time.Hour, runs, runs, failed, 1},
		{"OnFailure", "  restartPolicy: OnFailure\n" + job, 5 * time.Second, runs, done, done, 1},
		{"Always", job, 1500 * time.Millisecond, "Running Ready; c 1 running after Unknown(255)", crashing, "", 3},
		{"init container", init, 5 * time.Second, "Pending NotInitialized; i 0 running; web 0 PodInitializing",
			initDone, initDone, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				n.stop()
				n.lost = c.lost
				n.start()
				n.run(2*time.Second, n.pod("a", c.spec))
				n.want("a", c.soon)
				n.stop()
				n.start()
				n.run(6*time.Second, n.pod("a", c.spec))
				n.want("a", c.later)
				if starts := strings.Count(strings.Join(n.notes(), "\n"), "started"); starts != c.starts {
					t.Errorf("%q", n.notes())
				}
				n.wait(6 * time.Second)
				if c.last != "" {
					n.want("a", c.last)
				}
			})
		})
	}
}
