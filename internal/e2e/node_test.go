package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// patience is how long a test waits for a result. It is long because the machine may be busy. It
// does not measure speed.
const patience = 2 * time.Minute

// each is the time limit for one test. The flag -timeout of go test limits all tests together.
var each = flag.Duration("each", 10*time.Minute, "how long a test may run before it ends the program")

// node is a container runtime that the library watches.
type node struct {
	t      *testing.T
	ctx    context.Context // the test's context
	daemon *testnode.Daemon
	client *testnode.Client // for the test's own calls

	reconnect func() // reconnects the test's proxy, if there is one, after a restart

	runtime *cri.Runtime
	cache   *pleg.PodCache
	pleg    *pleg.GenericPLEG
	journal *journal // the events that Watch delivered
	meters  meters
}

// newNode starts a runtime and a generator on it. Both end with the test.
func newNode(t *testing.T, opts ...pleg.Option) *node {
	t.Helper()
	n := newBareNode(t)
	n.watch(opts...)
	return n
}

// newBareNode starts a runtime without a generator.
func newBareNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, ctx: t.Context()}
	bound := time.AfterFunc(*each, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("%s has run for %v", t.Name(), *each))
	})
	t.Cleanup(func() { bound.Stop() })
	n.daemon, n.client = testnode.ForTest(t)
	return n
}

// watch starts a generator on the node, without exit events.
func (n *node) watch(opts ...pleg.Option) {
	n.t.Helper()
	n.watchOver([]cri.Option{cri.WithoutExitEvents()}, opts...)
}

// watchOver starts a generator on the node, with options for its connection.
func (n *node) watchOver(connection []cri.Option, opts ...pleg.Option) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	runtime, err := cri.Connect(ctx, n.daemon.Endpoint(), connection...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.runtime = runtime
	n.t.Cleanup(func() {
		if err := runtime.Close(); err != nil {
			n.t.Error("closing the runtime:", err)
		}
	})
	n.cache = pleg.NewCache()
	n.meters = newMeters()
	n.pleg = pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod, n.cache,
		clock.RealClock{}, append(opts, pleg.WithLogger(testLogger(n.t)), pleg.WithRegisterer(n.meters))...)
	n.journal = newJournal(n.cache)
	events := n.pleg.Watch()
	reading, stop := context.WithCancel(context.Background())
	read := make(chan struct{})
	go func() {
		defer close(read)
		n.journal.read(reading, events)
	}()
	n.pleg.Start(n.ctx)
	n.t.Cleanup(func() {
		n.meters.checkBadData(n.t)
		n.pleg.Stop()
		stop()
		<-read
		for _, p := range n.journal.problems() {
			n.t.Error(p)
		}
	})
	n.awaitHealthy()
}

// beside starts another generator on the same runtime.
func (n *node) beside(opts ...pleg.Option) *node {
	n.t.Helper()
	other := &node{t: n.t, ctx: n.ctx, daemon: n.daemon, client: n.client}
	other.watch(opts...)
	return other
}

// besideWithExits starts another generator on the same runtime, with the runtime's exit events.
func (n *node) besideWithExits() *node {
	n.t.Helper()
	other := &node{t: n.t, ctx: n.ctx, daemon: n.daemon, client: n.client}
	other.watchOver([]cri.Option{cri.WithExitsDir(n.daemon.ExitsDir())})
	other.eventually("the exit stream", func() string {
		if state := other.pleg.HealthReport().ExitStream.State; state != pleg.StreamConnected {
			return string(state)
		}
		return ""
	})
	return other
}

// eventually waits until the function missing returns "". Any other result describes what is
// missing.
func (n *node) eventually(what string, missing func() string) {
	n.t.Helper()
	var last string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if last = missing(); last == "" {
			return
		}
	}
	n.t.Fatalf("%s: not within %v: %s\nevents so far:\n%s", what, patience, last, n.journal)
}

func (n *node) awaitHealthy() {
	n.t.Helper()
	n.eventually("being healthy", func() string {
		if ok, err := n.pleg.Healthy(); !ok {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// await waits until the journal contains exactly these types of events, in this order, for a
// container or sandbox.
func (n *node) await(id string, want ...pleg.PodLifeCycleEventType) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("events %v of %.12s", want, id), func() string {
		got := n.journal.types(id)
		if len(got) < len(want) {
			return fmt.Sprintf("has %v", got)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			n.t.Fatalf("container %.12s: events %v, want %v\nevents so far:\n%s", id, got, want, n.journal)
		}
		return ""
	})
}

// status waits until the cache has a pod status that was observed after this call, and returns it.
func (n *node) status(uid types.UID) *pleg.PodStatus {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	s, _, err := n.cache.LookupNewerThan(ctx, uid, time.Now())
	if err != nil {
		n.t.Fatalf("status of pod %s: %v", uid, err)
	}
	return s
}

// container does the same as the method status, but returns the status of one container.
func (n *node) container(uid types.UID, id string) *pleg.Status {
	n.t.Helper()
	s := containerIn(n.status(uid), id)
	if s == nil {
		n.t.Fatalf("pod %s has no container %.12s", uid, id)
	}
	return s
}

func containerIn(s *pleg.PodStatus, id string) *pleg.Status {
	for _, c := range s.ContainerStatuses {
		if c.ID.ID == id {
			return c
		}
	}
	return nil
}

func (n *node) runPod(name string) *testnode.Pod {
	n.t.Helper()
	p, err := n.client.RunPod(n.ctx, "e2e", name)
	n.must(err)
	return p
}

func (n *node) run(p *testnode.Pod, c testnode.Container) string {
	n.t.Helper()
	id, err := n.client.Run(n.ctx, p, c)
	n.must(err)
	return id
}

// must fails the test if err is not nil.
func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// signal sends a signal to the process of a container, without the runtime. It repeats the signal
// until the process has ended, because a new shell may not have set its trap yet.
func (n *node) signal(id string, s unix.Signal) {
	n.t.Helper()
	pid, err := n.client.Pid(n.ctx, id)
	n.must(err)
	n.signalPid(pid, s)
}

func (n *node) signalPid(pid int, s unix.Signal) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err := unix.Kill(pid, s); errors.Is(err, unix.ESRCH) {
			return
		}
	}
	n.t.Fatalf("process %d does not go", pid)
}

// awaitExit waits until the runtime shows a container as exited. It returns the container's status.
func (n *node) awaitExit(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	s := n.lastStatus(id, time.Now().Add(patience))
	if s.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		n.t.Fatalf("container %s does not exit", id)
	}
	return s
}

// lastStatus waits until the runtime shows a container as exited, or until the deadline. It returns
// the last status.
func (n *node) lastStatus(id string, deadline time.Time) *runtimeapi.ContainerStatus {
	n.t.Helper()
	for ; ; time.Sleep(5 * time.Millisecond) {
		r, err := n.client.ContainerStatus(n.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		n.must(err)
		if r.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED || time.Now().After(deadline) {
			return r.Status
		}
	}
}

// subscribe starts a new subscription and stores its events in a journal until the test ends.
func (n *node) subscribe(capacity int) *journal {
	ctx, stop := context.WithCancel(context.Background())
	j := newJournal(n.cache)
	events := n.pleg.Subscribe(ctx, pleg.WithCapacity(capacity))
	read := make(chan struct{})
	go func() {
		defer close(read)
		j.read(context.Background(), events) // the channel is closed when ctx ends
	}()
	n.t.Cleanup(func() {
		stop()
		<-read
		for _, p := range j.problems() {
			n.t.Error(p)
		}
	})
	return j
}

// testLogger logs to a test. The log is shown if the test fails, or with -v.
func testLogger(t *testing.T) klog.Logger {
	return funcr.New(func(prefix, args string) { t.Log(prefix, args) }, funcr.Options{})
}
