package nodeagent

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The default is a short run. "make jobs" runs a hundred jobs for ten minutes.
var (
	jobsFor   = flag.Duration("jobs.for", 20*time.Second, "how long TestJobsUnderFire kills")
	jobsCount = flag.Int("jobs.count", 15, "how many jobs it has run")
	jobsNever = flag.Bool("jobs.never", false, "all jobs have restartPolicy Never; else every fourth has")
)

// kindOf returns the kind of a job. A job of kind 0 must start only once.
func kindOf(i int) int {
	if *jobsNever {
		return 0
	}
	return i % 4
}

// job returns the manifest of a job. The job writes its steps to a file in dir.
func job(i int, dir string) (name, text string) {
	name = fmt.Sprintf("job-%03d", i)
	say := func(what string) string { return fmt.Sprintf("echo %s >> /out/%s; ", what, name) }
	script := say("start") + fmt.Sprintf("sleep %d; ", i%7) + say("end")
	spec := "  terminationGracePeriodSeconds: 1\n  volumes:\n  - {name: out, hostPath: {path: " + dir + "}}\n" +
		"  - {name: own, emptyDir: {}}\n"
	mounts := "    volumeMounts: [{name: out, mountPath: /out}, {name: own, mountPath: /own}]\n"
	switch kindOf(i) {
	case 0:
		spec += "  restartPolicy: Never\n"
	case 1: // a job that fails once
		spec += "  restartPolicy: OnFailure\n"
		script = "busybox test -e /own/tried || { busybox touch /own/tried; exit 3; }; " + script
	case 2: // a job with a hook and an init container; the agent may miss the init container's end
		spec += "  restartPolicy: OnFailure\n" + "  initContainers:\n  - {name: init, image: " + image +
			", imagePullPolicy: Never, command: [sleep, '1']}\n"
		mounts += "    lifecycle: {postStart: {exec: {command: ['true']}}}\n"
		script = "sleep 1; " + script // so that the container does not end before its hook
	case 3: // a job with a sidecar
		spec += "  restartPolicy: OnFailure\n" + "  initContainers:\n  - {name: side, image: " + image +
			", imagePullPolicy: Never, restartPolicy: Always, command: [sleep, '100000']}\n"
	}
	return name, manifest(name, spec+shell(script, mounts))
}

// While the test kills the agent and the runtime, every job runs to its end. A job runs again only
// if the job failed, or if the runtime lost the job's start or end. A job with restartPolicy Never
// starts at most once. At the end, no files are left on disk.
func TestJobsUnderFire(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	f := &fire{node: n, restarts: map[string]int32{}, starts: make(chan struct{}, 1)}
	out := filepath.Join(n.dir, "out")
	n.must(os.Mkdir(out, 0o755))
	a := n.startAgent()
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	var joined sync.WaitGroup
	joined.Go(func() { f.hurtRuntime(ctx) })

	// If a job ends while containerd is down, containerd reports exit code 255. The agent then
	// retries the job or reports it as failed. The agent does the same if the agent or containerd
	// was killed while containerd started the job. Such a job has no start time.
	forgotten := n.daemon.Runtime().ForgottenExit
	done, forgot := map[string]bool{}, map[string]bool{}
	note := func() { // records jobs that have ended, and removes the manifest of every second one
		for name, pod := range a.pods() {
			containers(pod, func(s *v1.ContainerStatus) {
				for _, state := range []v1.ContainerState{s.State, s.LastTerminationState} {
					if t := state.Terminated; t != nil && t.ExitCode != 0 &&
						(int(t.ExitCode) == forgotten || t.StartedAt.IsZero()) {
						forgot[name] = true
					}
				}
			})
			if pod.Status.Phase == v1.PodFailed && !done[name] && !forgot[name] {
				f.problem("%s has failed: %s", name, brief(pod))
			}
			if (pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed) && !done[name] {
				done[name] = true
				if len(done)%2 == 0 {
					n.remove(name)
				}
			}
		}
	}
	kills, began := 0, time.Now()
	for i := range *jobsCount {
		name, text := job(i, out)
		n.write(name, text)
		select {
		case f.starts <- struct{}{}:
		default:
		}
		for next := began.Add(*jobsFor * time.Duration(i+1) / time.Duration(*jobsCount)); time.Now().Before(next); {
			sleep(ctx, min(time.Duration(rand.N(4000))*time.Millisecond, time.Until(next)))
			note()
			if time.Now().Before(next) {
				a.end(syscall.SIGKILL)
				a = n.startAgent()
				kills++
			}
		}
	}
	enough()
	joined.Wait()
	n.must(n.daemon.Terminate()) // after a kill, containerd may need another restart to remove containers
	n.must(n.daemon.Restart(t.Context()))
	n.eventually("the ends of all jobs", func() string {
		note()
		for i := range *jobsCount {
			if name, _ := job(i, out); !done[name] {
				return name + " has not ended"
			}
		}
		return ""
	})
	for i := range *jobsCount {
		name, _ := job(i, out)
		said, err := os.ReadFile(filepath.Join(out, name))
		starts, ends := strings.Count(string(said), "start"), strings.Count(string(said), "end")
		once := kindOf(i) == 0 // such a job fails if the runtime loses the job's start or end
		if (err != nil || starts == 0 || ends == 0) && !(once && forgot[name]) {
			t.Errorf("%s did not run to its end: %q, %v", name, said, err)
		}
		if starts > 1 && (once || !forgot[name]) {
			t.Errorf("%s ran %d times:\n%s", name, starts, n.said(name))
		}
		_ = os.Remove(filepath.Join(n.manifests, name+".yaml")) // every second manifest is gone already
	}
	n.eventually("nothing that is left", func() string {
		var left []string
		for _, dir := range []string{"pods", "logs", "status"} {
			paths, _ := filepath.Glob(filepath.Join(n.dir, "state", dir, "*")) // the pattern is valid
			left = append(left, paths...)
		}
		sandboxes, containers, err := n.left()
		if err != nil || len(left)+len(sandboxes)+len(containers) > 0 {
			return fmt.Sprintf("%d sandboxes and %d containers, %q, %v", len(sandboxes), len(containers), left, err)
		}
		return ""
	})
	for _, p := range f.problems {
		t.Error(p)
	}
	t.Logf("%d jobs, the start or the end of %d was lost by the runtime, "+
		"%d kills of the agent, %d faults of the runtime in %v",
		*jobsCount, len(forgot), kills, f.faults, time.Since(began).Round(time.Second))
}
