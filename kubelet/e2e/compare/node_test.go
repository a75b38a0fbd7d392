package compare

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/kubelet"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

const (
	labelPod = "io.kubernetes.pod.name" // on the kubelet's containers and sandboxes
	nodeName = "node"                   // the kubelet appends it to the names of static pods
	// settle is how long tests wait for a kubelet's first syncs after its pods run.
	settle = 3 * time.Second
)

// patience limits every wait of a test. It is long enough for two stuck calls of the released
// kubelet, one after the other, on a busy machine.
func patience() time.Duration { return time.Minute + 3**timeout }

// node is a runtime with a proxy and static pods. Kubelets of one variant run on it, one after the
// other.
type node struct {
	t       *testing.T
	results *results
	variant variant
	daemon  *testnode.Daemon
	client  *testnode.Client
	proxy   *testnode.Proxy
	options kubelet.Options
	kubelet *kubelet.Kubelet // nil before the first start
	names   []string         // pods that stay
	added   int              // number of temporary pods
	killed  map[string]bool  // containers killed under the current kubelet

	mu      sync.Mutex
	book    []container   // each container, in the order of the runtime's first reports; guarded by mu
	changed chan struct{} // closed at the next report; guarded by mu
	judged  int           // number of containers in book that the method judgeSuccessors has checked
}

// container contains the runtime's reports of a container. Times are zero until they are reported.
type container struct {
	id, sandbox, pod string
	pid              int
	creation         time.Time // when its creation began
	created, started time.Time // times of CRI's events
	ended, reported  time.Time // the end in the exit event, and when the event came
}

// state is a pod's running container in the kubelet's status.
type state struct {
	id       string
	restarts int
}

func newNode(t *testing.T, r *results, v variant) *node {
	n := &node{t: t, results: r, variant: v, changed: make(chan struct{})}
	n.daemon, n.client = testnode.ForTest(t)
	if *programs == "" {
		root, err := testnode.Root(t.Context())
		n.must(err)
		*programs = filepath.Join(root, ".cache", "kubelet")
	}
	dir := t.TempDir()
	var err error
	n.proxy, err = n.daemon.StartProxy()
	n.must(err)
	t.Cleanup(func() { n.proxy.Close() })
	if v.noEvents {
		n.proxy.RefuseEvents()
	}
	n.options = kubelet.Options{
		Program: filepath.Join(*programs, v.program), Daemon: n.daemon, Client: n.client,
		Manifests: filepath.Join(dir, "manifests"), Dir: dir, NodeName: nodeName,
	}
	n.must(os.Mkdir(n.options.Manifests, 0o755))
	for i := range *pods {
		n.names = append(n.names, n.addSleeper(fmt.Sprintf("pod%03d", i)))
	}
	source, err := cri.Dial(n.daemon.Endpoint(), cri.WithExitsDir(n.daemon.ExitsDir()))
	n.must(err)
	var watchers sync.WaitGroup
	watchers.Go(func() { n.watch(t.Context()) })
	watchers.Go(func() { n.watchExits(t.Context(), source) })
	t.Cleanup(func() { // the context has ended, so the watchers end
		watchers.Wait()
		source.Close()
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) wait(d time.Duration) {
	n.t.Helper()
	n.must(measure.Wait(n.t.Context(), d))
}

// note applies a report to a container in book.
func (n *node) note(id string, report func(*container)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.book, func(c container) bool { return c.id == id })
	if i < 0 {
		i, n.book = len(n.book), append(n.book, container{id: id})
	}
	report(&n.book[i])
	close(n.changed)
	n.changed = make(chan struct{})
}

// watch records the runtime's events. It uses its own connection.
func (n *node) watch(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := n.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		for err == nil {
			var e *runtimeapi.ContainerEventResponse
			if e, err = stream.Recv(); err == nil && e.ContainerId != e.GetPodSandboxStatus().GetId() {
				n.note(e.ContainerId, func(c *container) { c.take(e) })
			}
		}
		_ = measure.Wait(ctx, 100*time.Millisecond) // the runtime may be restarting
	}
}

func (c *container) take(e *runtimeapi.ContainerEventResponse) {
	at := time.Unix(0, e.CreatedAt)
	switch e.ContainerEventType {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		c.pod, c.created, c.creation = withoutNode(e.GetPodSandboxStatus().GetMetadata().GetName()), at, at
		for _, s := range e.ContainersStatuses {
			if s.Id == c.id {
				c.creation = time.Unix(0, s.CreatedAt)
			}
		}
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		c.started = at
	default:
	}
}

// watchExits records the runtime's exit events.
func (n *node) watchExits(ctx context.Context, source *cri.Runtime) {
	for ctx.Err() == nil {
		_ = source.WatchContainerExits(ctx, func() {}, func(e pleg.ContainerExit) {
			n.note(e.ContainerID, func(c *container) {
				if c.reported.IsZero() {
					c.ended, c.reported = e.FinishedAt, time.Now()
				}
			})
		})
		_ = measure.Wait(ctx, 100*time.Millisecond)
	}
}

// find waits until the function wanted returns true for a container in book, and returns the first
// such container. It waits at most for the duration limit.
func (n *node) find(limit time.Duration, wanted func(container) bool) (c container, found bool) {
	deadline := time.After(limit)
	for {
		n.mu.Lock()
		changed := n.changed
		i := slices.IndexFunc(n.book, wanted)
		if i >= 0 {
			c = n.book[i]
		}
		n.mu.Unlock()
		if i >= 0 {
			return c, true
		}
		select {
		case <-n.t.Context().Done():
			return c, false
		case <-deadline:
			return c, false
		case <-changed:
		}
	}
}

// successor waits for a pod's first container that is created after the given time. It returns the
// time of the creation.
func (n *node) successor(pod string, after time.Time) time.Time {
	n.t.Helper()
	c, found := n.find(patience(), func(c container) bool { return c.pod == pod && c.created.After(after) })
	if !found {
		n.t.Fatalf("the container of %s has no successor after %v", pod, time.Since(after))
	}
	return c.created
}

// judgeSuccessors counts the containers that were created after the end of their predecessor. It
// skips predecessors that had not started. If the kubelet or the runtime is killed before the start
// of a container, every kubelet creates another container.
func (n *node) judgeSuccessors() {
	n.mu.Lock()
	all, judged := slices.Clone(n.book), n.judged
	n.judged = len(all)
	n.mu.Unlock()
	last := make(map[string]container)
	for i, c := range all {
		before, is := last[c.pod]
		if c.created.IsZero() {
			continue
		}
		last[c.pod] = c
		if !is || i < judged {
			continue
		}
		end := n.endOf(before.id)
		switch {
		case end.IsZero():
			n.t.Logf("nobody knows when container %.12s of %s ended", before.id, c.pod)
		case end.After(c.creation) && (before.started.IsZero() || before.started.After(c.creation)):
			n.t.Logf("container %.12s of %s had not started when its successor was created", before.id, c.pod)
		default:
			n.tally(alone, !end.After(c.creation), "container %.12s of %s ended %v after the creation of its successor",
				before.id, c.pod, end.Sub(c.creation))
		}
	}
}

// endOf returns the time when a container with a successor ended. If no exit event came because the
// runtime was down, endOf uses the container's status. For a running container, it returns the
// current time. If the runtime does not know the end, endOf returns zero: a containerd that is
// killed while it deletes a task forgets the task's end.
func (n *node) endOf(id string) time.Time {
	if c, reported := n.exitOf(id); reported {
		return c.ended
	}
	r, err := n.client.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	switch {
	case status.Code(err) == codes.NotFound || r.GetStatus().GetReason() == "Unknown":
		return time.Time{}
	case err != nil:
		n.t.Fatal(err)
	case r.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED:
		return time.Now()
	}
	return time.Unix(0, r.Status.FinishedAt)
}

// exitOf waits for the exit event of a container, for at most the duration settle.
func (n *node) exitOf(id string) (c container, reported bool) {
	return n.find(settle, func(c container) bool { return c.id == id && !c.reported.IsZero() })
}

// start kills the kubelet if one is running, and starts another one.
func (n *node) start(proxied bool) {
	n.options.Changes = map[string]any{
		"runtimeRequestTimeout": timeout.String(), "maxPods": 500, "oomScoreAdj": 0, "featureGates": n.variant.gates,
	}
	if proxied || n.variant.noEvents {
		n.options.Changes["containerRuntimeEndpoint"] = n.proxy.Endpoint
		n.options.Changes["imageServiceEndpoint"] = n.proxy.Endpoint
	}
	again := n.kubelet != nil
	n.killKubelet()
	n.killed = make(map[string]bool)
	began := time.Now()
	n.launch()
	n.await("has all pods running", func(shown map[string]state) bool { return len(shown) == len(n.names) })
	if again {
		n.add("kubelet killed and started → all pods Running in `/pods`", time.Since(began))
	}
	n.wait(settle)
}

func (n *node) launch() {
	n.kubelet = kubelet.Run(n.t, n.options)
}

// killKubelet ends the kubelet as a crash does. Its pods keep running.
func (n *node) killKubelet() {
	if n.kubelet != nil {
		_ = syscall.Kill(n.kubelet.Pid(), syscall.SIGKILL) // the kubelet may have ended by itself
		n.kubelet.Terminate(n.t)                           // returns when the kubelet has ended
	}
}

// revive starts the kubelet again if it has ended by itself, as an init system does. A kubelet ends
// by itself if it finds no runtime at its start.
func (n *node) revive() {
	if syscall.Kill(n.kubelet.Pid(), 0) != nil {
		n.t.Log("the kubelet has ended, and is started again")
		n.launch()
	}
}

// addSleeper writes the manifest of a static pod that sleeps.
func (n *node) addSleeper(name string) string {
	n.must(n.options.WriteManifest(name, testnode.StaticPod(name, nil)))
	return name
}

// next returns the name of the next temporary pod.
func (n *node) next() string {
	n.added++
	return fmt.Sprintf("new%03d", n.added)
}

// addNew adds a pod, and measures until the kubelet shows the pod as running.
func (n *node) addNew(kind string) string {
	at, name := time.Now(), n.addSleeper(n.next())
	n.await("runs a new pod", func(shown map[string]state) bool { return shown[name].id != "" })
	if kind != "" {
		n.add(kind, time.Since(at))
	}
	return name
}

func (n *node) remove(name string) {
	n.must(os.Remove(n.options.Manifest(name)))
}

// kill kills a container and returns the time of the kill.
func (n *node) kill(c container) (at time.Time, err error) {
	n.killed[c.id] = true
	at = time.Now()
	if c.pid <= 0 {
		return at, fmt.Errorf("container %s has no process", c.id)
	}
	return at, syscall.Kill(c.pid, syscall.SIGKILL)
}

// listContainers returns the running containers of the runtime, by pod.
func (n *node) listContainers() (map[string]container, error) {
	list, err := n.client.ListContainers(n.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	containers := make(map[string]container)
	for _, c := range list.GetContainers() {
		containers[withoutNode(c.Labels[labelPod])] = container{id: c.Id, sandbox: c.PodSandboxId}
	}
	return containers, err
}

func withoutNode(pod string) string { return strings.TrimSuffix(pod, "-"+nodeName) }

// await waits until the function wanted accepts the running containers in the kubelet's status. It
// returns these containers by pod.
func (n *node) await(what string, wanted func(shown map[string]state) bool) map[string]state {
	n.t.Helper()
	shown, as := n.awaitFor(patience(), wanted)
	if !as {
		running, err := n.listContainers()
		n.t.Fatalf("the kubelet never %s; it shows %v, the runtime runs %v (%v)", what, shown, running, err)
	}
	return shown
}

func (n *node) awaitFor(limit time.Duration, wanted func(map[string]state) bool) (shown map[string]state, as bool) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); n.wait(20 * time.Millisecond) {
		pods, err := n.kubelet.Pods(n.t.Context()) // ignored: the kubelet may have just started
		shown = make(map[string]state)
		for _, p := range pods.Items {
			for _, s := range p.Status.ContainerStatuses {
				if s.State.Running != nil && p.Status.Phase == "Running" {
					_, id, _ := strings.Cut(s.ContainerID, "://")
					shown[withoutNode(p.Metadata.Name)] = state{id, s.RestartCount}
				}
			}
		}
		if err == nil && wanted(shown) {
			return shown, true
		}
	}
	return shown, false
}

// agrees returns a function for await. This function returns true if the kubelet shows count pods,
// with the same containers as the runtime.
func (n *node) agrees(count int) func(shown map[string]state) bool {
	return func(shown map[string]state) bool {
		running, err := n.listContainers()
		same := func(s state, c container) bool { return s.id == c.id }
		return err == nil && len(shown) == count && maps.EqualFunc(shown, running, same)
	}
}

// saidAt returns the time of the first line in a kubelet's log that contains all given words.
func saidAt(log string, words ...string) (at time.Time, found bool) {
	for line := range strings.Lines(log) {
		if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			continue
		}
		// Lines begin with the level, the day and the local time.
		if fields := strings.Fields(line); len(fields) > 1 && len(fields[0]) == len("I0102") {
			stamp := fmt.Sprint(time.Now().Year(), fields[0][1:], " ", fields[1])
			if at, err := time.ParseInLocation("20060102 15:04:05.000000", stamp, time.Local); err == nil {
				return at, true
			}
		}
	}
	return time.Time{}, false
}

// health returns the kubelet's answer at /healthz and the kubelet's last log line about an
// unhealthy generator. It skips lines from before the first list.
func (n *node) health() string {
	answer, err := n.kubelet.Get(n.t.Context(), "/healthz")
	var last string
	for line := range strings.Lines(n.kubelet.Log()) {
		if _, reason, found := strings.Cut(line, "PLEG is not healthy: "); found && !strings.Contains(reason, "yet to be") {
			last = reason
		}
	}
	return fmt.Sprintf("%.20q (%v), not healthy: %q", answer, err, last)
}

// checkBackOff fails the test if a container was in back-off. Otherwise the test would measure the
// back-off instead of the kubelet.
func (n *node) checkBackOff() {
	if _, after, found := strings.Cut(n.kubelet.Log(), "CrashLoopBackOff: "); found {
		n.t.Fatalf("a container was in back-off, although none should crash twice: %.200s", after)
	}
}

// checkMetrics fails the test if the kubelet lacks a metric that dashboards of its generator use.
func (n *node) checkMetrics() {
	answer, err := n.kubelet.Get(n.t.Context(), "/metrics")
	n.must(err)
	for _, name := range []string{
		"kubelet_pleg_relist_duration_seconds_count", "kubelet_pleg_relist_interval_seconds_count",
		"kubelet_pleg_pod_relist_duration_seconds_count", "kubelet_pleg_discard_events", "kubelet_pleg_last_seen_seconds",
		"kubelet_running_pods", `kubelet_running_containers{container_state="running"}`,
	} {
		if times := strings.Count("\n"+string(answer), "\n"+name+" "); times != 1 {
			n.t.Errorf("the kubelet has the metric %s %d times", name, times)
		}
	}
	if is := strings.Contains(string(answer), "\npleg_healthy "); is != n.variant.ours() {
		n.t.Errorf("pleg_healthy, by which an operator knows the kubelet on the library: %v", is)
	}
}

func (n *node) add(kind string, d time.Duration) {
	n.t.Logf("  %s: %s", kind, show(d))
	n.results.outcome(n.variant.name, kind).add(d)
}

// tally records whether a check succeeded. If the check failed and the kubelet uses the library,
// tally fails the test.
func (n *node) tally(kind string, as bool, format string, args ...any) {
	n.t.Helper()
	o := n.results.outcome(n.variant.name, kind)
	o.All++
	switch {
	case as:
		o.Hits++
	case n.variant.ours():
		n.t.Errorf(format, args...)
	default:
		n.t.Logf(format, args...)
	}
}
