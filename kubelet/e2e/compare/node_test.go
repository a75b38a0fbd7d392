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
	// settle is how long a kubelet is left alone after its pods run, for its first syncs.
	settle = 3 * time.Second
)

// patience is the longest time that a test waits for anything: two calls of the released kubelet that
// hang one after the other, and a machine that others use.
func patience() time.Duration { return time.Minute + 3**timeout }

// node is a runtime, a proxy for it, and static pods, which kubelets of one variant run in turn.
type node struct {
	t       *testing.T
	results *results
	variant variant
	daemon  *testnode.Daemon
	client  *testnode.Client
	proxy   *testnode.Proxy
	options kubelet.Options
	kubelet *kubelet.Kubelet // nil before the first
	names   []string         // of the pods that stay
	added   int              // pods that come and go
	killed  map[string]bool  // containers, under the kubelet that runs

	mu      sync.Mutex
	book    []container   // what the runtime has reported, as it was first reported; guarded by mu
	changed chan struct{} // closed at the next report; guarded by mu
	judged  int           // how many of book judgeSuccessors has seen
}

// container is what the runtime reports of a container. Its times are zero until then.
type container struct {
	id, sandbox, pod string
	pid              int
	creation         time.Time // when its creation began
	created, started time.Time // by CRI's events
	ended, reported  time.Time // its end by the exit event, and when that event came
}

// state is the running container of a pod as the kubelet shows it.
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
	t.Cleanup(func() { // the context has ended
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

// note keeps a report of a container.
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

// watch keeps the runtime's events, over a connection of its own.
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

// watchExits keeps the runtime's exit events.
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

// find returns the first container that is as wanted, as soon as the runtime has reported one.
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

// successor returns when a container was created in a pod, after a time.
func (n *node) successor(pod string, after time.Time) time.Time {
	n.t.Helper()
	c, found := n.find(patience(), func(c container) bool { return c.pod == pod && c.created.After(after) })
	if !found {
		n.t.Fatalf("the container of %s has no successor after %v", pod, time.Since(after))
	}
	return c.created
}

// judgeSuccessors counts the containers that were created after the end of the container before them
// in their pod. A container that had not started is left out: if kubelet or runtime are killed
// meanwhile, every kubelet makes another.
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

// endOf returns when a container that has a successor ended: zero if the runtime does not know. While
// the runtime does not run it reports no exits; then its status counts. containerd forgets an end if
// it is killed as it deletes the task. A container that runs has not ended before now.
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

// exitOf returns a container once its exit event has come.
func (n *node) exitOf(id string) (c container, reported bool) {
	return n.find(settle, func(c container) bool { return c.id == id && !c.reported.IsZero() })
}

// start has another kubelet take over from the one before, which is killed.
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

// killKubelet ends the kubelet as a crash would. Its pods run on.
func (n *node) killKubelet() {
	if n.kubelet != nil {
		_ = syscall.Kill(n.kubelet.Pid(), syscall.SIGKILL) // it may have ended by itself
		n.kubelet.Terminate(n.t)                           // returns when it has ended
	}
}

// revive starts the kubelet again if it has ended by itself, as an init system would: a kubelet that
// finds no runtime at its start does.
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

// next returns the name of a pod that is to come and go.
func (n *node) next() string {
	n.added++
	return fmt.Sprintf("new%03d", n.added)
}

// addNew adds a pod, and measures until the kubelet shows that it runs.
func (n *node) addNew(kind string) string {
	at, name := time.Now(), n.addSleeper(n.next())
	n.await("runs a new pod", func(shown map[string]state) bool { return shown[name].id != "" })
	if kind != "" {
		n.add(kind, time.Since(at))
	}
	return name
}

// remove removes the manifest of a pod.
func (n *node) remove(name string) {
	n.must(os.Remove(n.options.Manifest(name)))
}

// kill kills a container and returns when.
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

// await returns the running containers that the kubelet shows, by pod, when they are as wanted.
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
		pods, err := n.kubelet.Pods(n.t.Context()) // it may just have been started
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

// agrees returns whether the kubelet shows what the runtime runs: so many pods, with the same containers.
func (n *node) agrees(count int) func(shown map[string]state) bool {
	return func(shown map[string]state) bool {
		running, err := n.listContainers()
		same := func(s state, c container) bool { return s.id == c.id }
		return err == nil && len(shown) == count && maps.EqualFunc(shown, running, same)
	}
}

// saidAt returns the time of the first line of a kubelet's log that has all of some words.
func saidAt(log string, words ...string) (at time.Time, found bool) {
	for line := range strings.Lines(log) {
		if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			continue
		}
		// Lines begin with level and day, and the local time.
		if fields := strings.Fields(line); len(fields) > 1 && len(fields[0]) == len("I0102") {
			stamp := fmt.Sprint(time.Now().Year(), fields[0][1:], " ", fields[1])
			if at, err := time.ParseInLocation("20060102 15:04:05.000000", stamp, time.Local); err == nil {
				return at, true
			}
		}
	}
	return time.Time{}, false
}

// health returns what the kubelet answers at /healthz, and the last log line about an unhealthy
// generator, other than before its first list.
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

// checkBackOff fails the test if the kubelet has had a container in back-off. How soon its successor
// was created would then be the back-off's time.
func (n *node) checkBackOff() {
	if _, after, found := strings.Cut(n.kubelet.Log(), "CrashLoopBackOff: "); found {
		n.t.Fatalf("a container was in back-off, which was not to crash twice: %.200s", after)
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
}

// add records a sample.
func (n *node) add(kind string, d time.Duration) {
	n.t.Logf("  %s: %s", kind, show(d))
	n.results.outcome(n.variant.name, kind).add(d)
}

// tally records whether something was as it should be. If not, a kubelet on the library fails the test.
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
