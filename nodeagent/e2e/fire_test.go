package nodeagent

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The default is a short run that is long enough for every kind of fault of the runtime.
var fireKills = flag.Int("fire.kills", 9, "how often TestUnderFire kills the agent")

const (
	firePods = 30

	labelPod       = "io.kubernetes.pod.name"
	labelUID       = "io.kubernetes.pod.uid"
	labelName      = "io.kubernetes.container.name"
	annotationRuns = "io.kubernetes.container.restartCount"
)

// While pods crash and change, the test kills the agent many times. It also kills, freezes and
// restarts the runtime, and pauses shims. No container may run twice at once, and no restart count
// may fall. At the end, nothing is orphaned, and the agent's statuses match the runtime.
func TestUnderFire(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		recovered := true
		t.Run(fmt.Sprint("node ", i), func(t *testing.T) { recovered = underFire(t) })
		if recovered {
			return
		}
	}
	t.Error("containerd refused to start on three nodes in a row")
}

// underFire runs the test on a node. It returns false if containerd refused to start.
func underFire(t *testing.T) (recovered bool) {
	n := newNode(t)
	f := &fire{node: n, restarts: map[string]int32{}}
	for i := range firePods {
		f.write(i)
	}
	a := n.startAgent()
	n.eventually("the first pods", func() string {
		if pods := a.pods(); len(pods) < firePods {
			return fmt.Sprintf("%d pods", len(pods))
		}
		return ""
	})

	ctx, enough := context.WithCancel(t.Context())
	var joined sync.WaitGroup
	joined.Go(func() { f.change(ctx) })
	joined.Go(func() { f.hurtRuntime(ctx) })
	joined.Go(func() { f.watchRuntime(ctx) })
	for i := range *fireKills {
		sleep(ctx, time.Duration(rand.N(4000))*time.Millisecond)
		if i%3 == 2 { // every third agent runs longer
			sleep(ctx, 8*time.Second)
		}
		f.watchAgent(a)
		a.end(syscall.SIGKILL)
		a = n.startAgent()
	}
	enough()
	joined.Wait()
	if f.report() {
		return false
	}
	// After a kill, containerd may have lost track of a task. It then refuses to remove the task's
	// container until the next restart of containerd.
	n.must(n.daemon.Terminate())
	if err := n.daemon.Restart(t.Context()); err != nil {
		f.problem("restarting the runtime: %v", err)
		return !f.report()
	}
	for i := range firePods {
		f.set(i, 0)
	}

	n.eventually("statuses that are the runtime's", func() string { return f.differs(a) })
	f.watchAgent(a)
	f.report()
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Logf("%d kills of the agent, %d faults of the runtime, %d changes of manifests, %d lists, %d restarts",
		*fireKills, f.faults, f.changes, f.lists, sumOf(f.restarts))
	return true
}

func sumOf(m map[string]int32) (n int32) {
	for _, v := range m {
		n += v
	}
	return n
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// fire injects faults into a node.
type fire struct {
	*node
	// starts receives a value when a job is about to start, so that the test freezes the runtime
	// during the start. It is nil if the test runs no jobs.
	starts chan struct{}

	mu sync.Mutex
	// mu guards the fields below.
	restarts               map[string]int32 // the highest count seen, by pod and container
	problems               []string
	faults, changes, lists int
}

func (f *fire) problem(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.problems) < 20 {
		f.problems = append(f.problems, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// report fails the test with each problem so far. refused is true if containerd refused to start, which
// does not fail the test. If containerd is killed while it makes a sandbox, it may have two sandboxes
// with the same name, and then it does not start: see containerd's issue 9459.
func (f *fire) report() (refused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.problems {
		if strings.Contains(p, "failed to reserve sandbox name") {
			refused = true
			f.t.Log(p)
		} else {
			f.t.Error(p)
		}
	}
	f.problems = nil
	return refused
}

func (f *fire) count(n *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

// write writes the first variant of a pod's manifest.
func (f *fire) write(i int) { f.set(i, 0) }

func (f *fire) set(i, variant int) {
	name := fmt.Sprintf("pod-%02d", i)
	spec := "  terminationGracePeriodSeconds: 1\n"
	switch i % 5 {
	case 0: // a pod that runs
		spec += shell(fmt.Sprintf("sleep %d", 100000+variant), "")
	case 1: // a pod that crashes
		spec += shell(fmt.Sprintf("sleep 0.%d; exit 3", 1+variant), "")
	case 2: // a pod with a sidecar and two containers; the first container crashes
		spec += `  initContainers:
  - name: side
    image: ` + image + `
    imagePullPolicy: Never
    restartPolicy: Always
    command: ["sleep", "100000"]
` + shell(fmt.Sprintf("sleep 1.%d; exit 1", variant), "") + `  - name: other
    image: ` + image + `
    imagePullPolicy: Never
    command: ["sleep", "100000"]
`
	case 3: // a pod that fails its liveness probe
		spec += shell(fmt.Sprintf("sleep %d", 100000+variant), `    livenessProbe:
      exec: {command: ["false"]}
      periodSeconds: 1
      failureThreshold: 2
`)
	case 4: // a job that fails and is retried
		spec += "  restartPolicy: OnFailure\n" + shell(fmt.Sprintf("sleep 0.%d; exit 2", 3+variant), "")
	}
	f.node.write(name, manifest(name, spec))
}

// change changes, removes and re-creates pods.
func (f *fire) change(ctx context.Context) {
	for ctx.Err() == nil {
		i := rand.N(firePods)
		if rand.N(4) == 0 {
			_ = os.Remove(filepath.Join(f.manifests, fmt.Sprintf("pod-%02d.yaml", i))) // the file may be gone already
		} else {
			f.set(i, rand.N(5))
		}
		f.count(&f.changes)
		sleep(ctx, time.Duration(rand.N(1500))*time.Millisecond)
	}
}

func (f *fire) hurtRuntime(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		var err error
		switch i % 4 {
		case 0:
			err = f.stopShim(ctx)
		case 1:
			f.awaitStart(ctx)
			if err = f.daemon.Freeze(); err == nil {
				sleep(ctx, time.Duration(2000+rand.N(1000))*time.Millisecond)
				err = f.daemon.Thaw()
			}
		case 2:
			if err = f.daemon.Kill(); err == nil {
				sleep(ctx, time.Second)
				err = f.daemon.Restart(context.WithoutCancel(ctx))
			}
		case 3:
			if err = f.daemon.Terminate(); err == nil {
				err = f.daemon.Restart(context.WithoutCancel(ctx))
			}
		}
		if err != nil {
			f.problem("hurting the runtime: %v", err)
			return
		}
		f.count(&f.faults)
		sleep(ctx, time.Duration(2000+rand.N(5000))*time.Millisecond)
	}
}

// awaitStart waits until a job is about to start. If the test runs no jobs, it returns at once.
func (f *fire) awaitStart(ctx context.Context) {
	if f.starts == nil {
		return
	}
	select {
	case <-f.starts: // ignores a job that started during the previous fault
	default:
	}
	select {
	case <-ctx.Done():
	case <-f.starts:
		sleep(ctx, time.Duration(100+rand.N(500))*time.Millisecond)
	}
}

// stopShim pauses one shim for six seconds. With CRI-O, it pauses one conmon instead.
func (f *fire) stopShim(ctx context.Context) error {
	var shims []int
	dir := f.daemon.Dir()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		program, args, _ := strings.Cut(string(line), "\x00")
		if err == nil && slices.Contains([]string{"containerd-shim-runc-v2", "conmon"}, filepath.Base(program)) &&
			strings.Contains(args, dir+"/") {
			shims = append(shims, pid)
		}
	}
	if len(shims) == 0 {
		return nil
	}
	pid := shims[rand.N(len(shims))]
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil //nolint:nilerr // the process has ended meanwhile
	}
	sleep(ctx, 6*time.Second)
	_ = syscall.Kill(pid, syscall.SIGCONT) // the process may have been killed
	return nil
}

// watchRuntime records a problem if two instances of the same container run at once.
func (f *fire) watchRuntime(ctx context.Context) {
	var suspects map[string]bool
	for ; ctx.Err() == nil; sleep(ctx, 50*time.Millisecond) {
		ask, cancel := context.WithTimeout(ctx, 10*time.Second)
		running, err := f.client.ListContainers(ask, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
		cancel()
		if err != nil {
			suspects = nil
			continue
		}
		f.count(&f.lists)
		// A list is not a snapshot, so two instances count only if two lists in a row contain both
		// IDs. A restarted runtime may list ended containers as running, so each instance must also
		// have a process.
		seen, twice := map[string]*runtimeapi.Container{}, map[string]bool{}
		for _, c := range running.Containers {
			key := c.Labels[labelUID] + "/" + c.Labels[labelName]
			if other := seen[key]; other != nil {
				pair := min(c.Id, other.Id) + " " + max(c.Id, other.Id)
				twice[pair] = true
				if suspects[pair] && f.lives(ctx, c.Id) && f.lives(ctx, other.Id) {
					f.problem("%s of %s runs twice: %v and %v", c.Labels[labelName], c.Labels[labelPod], c, other)
				}
			}
			seen[key] = c
		}
		suspects = twice
	}
}

// lives reports whether a container's process runs.
func (f *fire) lives(ctx context.Context, id string) bool {
	ask, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	pid, err := f.client.Pid(ask, id)
	if err != nil {
		return false // the container or the runtime has ended
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// watchAgent records a problem if a restart count falls. If a pod is re-created, its counts begin
// at 0, and its start time is different.
func (f *fire) watchAgent(a *agent) {
	for _, pod := range a.pods() {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for _, c := range list {
				key := fmt.Sprint(pod.Name, "/", c.Name, " ", pod.Status.StartTime)
				f.mu.Lock()
				before := f.restarts[key]
				f.restarts[key] = max(before, c.RestartCount)
				f.mu.Unlock()
				if c.RestartCount < before {
					f.problem("%s: %d restarts after %d", key, c.RestartCount, before)
				}
			}
		}
	}
}

// differs describes a difference between the agent's statuses and the runtime. It returns "" if
// there is no difference.
func (f *fire) differs(a *agent) string {
	pods := a.pods()
	sandboxes, containers, err := f.left()
	if err != nil || len(pods) != firePods {
		return fmt.Sprintf("%d pods, %v", len(pods), err)
	}
	uids, ready := map[string]*v1.Pod{}, map[string]int{}
	for _, pod := range pods {
		uids[string(pod.UID)] = pod
	}
	for _, s := range sandboxes {
		if uids[s.Labels[labelUID]] == nil {
			return "orphaned sandbox of " + s.Metadata.Name
		}
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			if ready[s.Labels[labelUID]]++; ready[s.Labels[labelUID]] > 1 {
				return "two sandboxes of " + s.Metadata.Name
			}
		}
	}
	newest, dead := map[string]*runtimeapi.Container{}, map[string]int{}
	for _, c := range containers {
		key := c.Labels[labelUID] + "/" + c.Labels[labelName]
		if uids[c.Labels[labelUID]] == nil {
			return "orphaned container " + key
		}
		if newest[key] == nil || c.CreatedAt > newest[key].CreatedAt {
			newest[key] = c
		}
		if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			if dead[key]++; dead[key] > 1 {
				return "dead containers are left: " + key
			}
		}
	}
	for _, pod := range pods {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for _, s := range list {
				c := newest[string(pod.UID)+"/"+s.Name]
				switch {
				case c == nil:
					return fmt.Sprintf("%s/%s is not in the runtime", pod.Name, s.Name)
				case !strings.HasSuffix(s.ContainerID, c.Id), fmt.Sprint(s.RestartCount) != c.Annotations[annotationRuns],
					(s.State.Running != nil) != (c.State == runtimeapi.ContainerState_CONTAINER_RUNNING):
					return fmt.Sprintf("%s/%s: %v, in the runtime %v %v", pod.Name, s.Name, s, c.State, c.Annotations)
				}
			}
		}
	}
	return ""
}
