package contract_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// node is a fake runtime with a generator that watches it.
type node struct {
	*plegtest.Runtime
	t     *testing.T
	cache *pleg.PodCache
	g     *pleg.GenericPLEG
}

func (n *node) present() []*pleg.Pod {
	list, err := n.GetPods(context.Background(), true)
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// start starts the generator until the test ends.
func (n *node) start() {
	n.g.Start(n.t.Context())
	n.t.Cleanup(n.g.Stop)
	synctest.Wait()
}

// setSingles sets pods with one running container each: pod-00 with pod-00-1, and so on.
func (n *node) setSingles(count int) {
	for i := range count {
		uid := fmt.Sprintf("pod-%02d", i)
		n.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-1")))
	}
}

// relist calls Relist. It ignores the error, because the tests check the effects of a failed list.
func (n *node) relist() { _ = n.g.Relist(context.Background()) }

// blockLists blocks every full list and every pod list.
func (n *node) blockLists() (heal func()) {
	all := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Block: true, IgnoreCancel: true})
	one := n.Inject(plegtest.Fault{Method: plegtest.GetPod, Block: true, IgnoreCancel: true})
	return func() { all(); one() }
}

// newNode makes a node with the real clock, for a synctest bubble.
func newNode(t *testing.T, opts ...pleg.Option) *node {
	return newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return rt }, opts...)
}

// newOrderlyNode is like newNode, but with one worker. The worker inspects pods in the order of
// their UIDs, so the events of pods that change in one list are delivered in that order.
func newOrderlyNode(t *testing.T) *node { return newNode(t, pleg.WithInspectionWorkers(1)) }

// newNodeOf is like newNode, but the generator uses the runtime that wrap returns for the fake
// runtime.
func newNodeOf(t *testing.T, wrap func(*plegtest.Runtime) pleg.Runtime, opts ...pleg.Option) *node {
	t.Helper()
	n := &node{Runtime: plegtest.NewRuntime(), t: t, cache: pleg.NewCache()}
	opts = append([]pleg.Option{pleg.WithLogger(logr.Discard())}, opts...)
	n.g = pleg.NewGenericPLEG(wrap(n.Runtime), 0, 0, n.cache, clock.RealClock{}, opts...)
	return n
}

// newNodeWithMetrics is like newNode, but also returns a registry with the metrics.
func newNodeWithMetrics(t *testing.T, opts ...pleg.Option) (*node, *prometheus.Registry) {
	t.Helper()
	return newNodeWithMetricsOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return rt }, opts...)
}

// newNodeWithMetricsOf is like newNodeOf, but also returns a registry with the metrics.
func newNodeWithMetricsOf(
	t *testing.T, wrap func(*plegtest.Runtime) pleg.Runtime, opts ...pleg.Option,
) (*node, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	return newNodeOf(t, wrap, append(opts, pleg.WithRegisterer(reg))...), reg
}

// pods makes n running pods with one container each.
func pods(n int) []*pleg.Pod {
	list := make([]*pleg.Pod, n)
	for i := range list {
		uid := types.UID(fmt.Sprintf("pod-%05d", i))
		list[i] = plegtest.NewPod(uid, plegtest.Running(string(uid)+"-a"))
	}
	return list
}

// bare makes a pod without the sandbox that NewPod adds.
func bare(uid types.UID, containers ...*pleg.Container) *pleg.Pod {
	return &pleg.Pod{ID: uid, Name: string(uid), Namespace: "default", Containers: containers}
}

// statusOf makes a status that agrees with a pod without sandboxes.
func statusOf(p *pleg.Pod) *pleg.PodStatus {
	status := &pleg.PodStatus{ID: p.ID, Name: p.Name, Namespace: p.Namespace}
	for _, c := range p.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, &pleg.Status{ID: c.ID, Name: c.Name, State: c.State})
	}
	return status
}

// epoch is the start time of tests that need dates.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// fresh reports whether a read is answered without blocking.
func fresh(c *pleg.PodCache, uid types.UID, minTime time.Time) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := c.LookupNewerThan(ctx, uid, minTime)
	return !errors.Is(err, context.Canceled)
}

// wantMetric compares a counter or gauge with a value. labels are pairs of name and value.
func wantMetric(t *testing.T, reg prometheus.Gatherer, name string, value float64, labels ...string) {
	t.Helper()
	if got := metric(t, reg, name, labels...); got != value {
		t.Errorf("%s%v is %v, not %v", name, labels, got, value)
	}
}

// metric returns the value of a counter or gauge, or the count of a histogram.
func metric(t *testing.T, reg prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metrics:
		for _, m := range f.GetMetric() {
			for i := 0; i < len(labels); i += 2 {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !found {
					continue metrics
				}
			}
			switch {
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				return m.GetGauge().GetValue()
			default:
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// healthy checks that the generator is healthy.
func healthy(t *testing.T, g *pleg.GenericPLEG) {
	t.Helper()
	if ok, err := g.Healthy(); !ok || err != nil {
		t.Fatalf("not healthy: %v", err)
	}
}

// unhealthy checks that the generator is unhealthy. The error must begin with the first part and
// contain the other parts.
func unhealthy(t *testing.T, g *pleg.GenericPLEG, parts ...string) {
	t.Helper()
	ok, err := g.Healthy()
	if ok || err == nil {
		t.Fatal("it is healthy")
	}
	if !strings.HasPrefix(err.Error(), parts[0]) {
		t.Errorf("%q does not begin with %q", err, parts[0])
	}
	for _, part := range parts[1:] {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

// logLines records the logged lines.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) logger(verbosity int) logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, args)
	}, funcr.Options{Verbosity: verbosity})
}

func (l *logLines) matching(part string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}

// returns reports whether call returns within d.
func returns(d time.Duration, call func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// atOnce reports whether call returns before the clock advances.
func atOnce(call func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	synctest.Wait()
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// slowLogger returns a logger that calls the function slow for each line that contains the message.
// The call blocks the loop.
func slowLogger(message string, slow func()) logr.Logger {
	return funcr.New(func(_, args string) {
		if strings.Contains(args, message) {
			slow()
		}
	}, funcr.Options{Verbosity: 5})
}

// heapInUse returns the size of reachable memory.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // frees finalized objects and the contents of pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // a heap is not that large
}

func status(uid types.UID, name string) *pleg.PodStatus {
	return &pleg.PodStatus{ID: uid, Name: name}
}

// lookupStatus makes the status of a pod. Unless created is 0, the pod has a sandbox with that
// creation time.
func lookupStatus(uid types.UID, name string, created int64, containers, ips []string) *pleg.PodStatus {
	s := &pleg.PodStatus{ID: uid, Namespace: "shop", Name: name, IPs: ips}
	for _, id := range containers {
		s.ContainerStatuses = append(s.ContainerStatuses,
			&pleg.Status{ID: pleg.ContainerID{Type: "containerd", ID: id}})
	}
	if created > 0 {
		s.SandboxStatuses = []*runtimeapi.PodSandboxStatus{{Id: string(uid) + "-sandbox", CreatedAt: created}}
	}
	return s
}
