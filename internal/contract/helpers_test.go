package contract_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
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

// setSingles sets pods of one running container: pod-00 with pod-00-1, and so on.
func (n *node) setSingles(count int) {
	for i := range count {
		uid := fmt.Sprintf("pod-%02d", i)
		n.SetPod(bare(types.UID(uid), plegtest.Running(uid+"-1")))
	}
}

// relist is Relist. Where the list fails, what it leaves is what the test is about.
func (n *node) relist() { _ = n.g.Relist(context.Background()) }

// newNode makes a node for a synctest bubble, whose clock is the real one.
func newNode(t *testing.T, opts ...pleg.Option) *node {
	return newNodeOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return rt }, opts...)
}

// newOrderlyNode is newNode with one worker, which inspects pods by their UIDs: so are the
// events of pods that one list shows changed delivered.
func newOrderlyNode(t *testing.T) *node { return newNode(t, pleg.WithInspectionWorkers(1)) }

// newNodeOf is newNode with a runtime made of the fake one.
func newNodeOf(t *testing.T, wrap func(*plegtest.Runtime) pleg.Runtime, opts ...pleg.Option) *node {
	t.Helper()
	n := &node{Runtime: plegtest.NewRuntime(), t: t, cache: pleg.NewCache()}
	opts = append([]pleg.Option{pleg.WithLogger(logr.Discard())}, opts...)
	n.g = pleg.NewGenericPLEG(wrap(n.Runtime), 0, 0, n.cache, clock.RealClock{}, opts...)
	return n
}

// newNodeWithMetrics is newNode with a registry of metrics.
func newNodeWithMetrics(t *testing.T, opts ...pleg.Option) (*node, *prometheus.Registry) {
	t.Helper()
	return newNodeWithMetricsOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return rt }, opts...)
}

// newNodeWithMetricsOf is newNodeOf with a registry of metrics.
func newNodeWithMetricsOf(
	t *testing.T, wrap func(*plegtest.Runtime) pleg.Runtime, opts ...pleg.Option,
) (*node, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	return newNodeOf(t, wrap, append(opts, pleg.WithRegisterer(reg))...), reg
}

// polling is a runtime without companions: it can list everything and inspect.
func polling(rt *plegtest.Runtime) pleg.Runtime { return rt.Plain() }

// listsOnly is a runtime that has events and cannot list one pod.
func listsOnly(rt *plegtest.Runtime) pleg.Runtime {
	return struct {
		pleg.Runtime
		pleg.EventSource
	}{rt.Plain(), rt}
}

// pods makes n running pods of one container each.
func pods(n int) []*pleg.Pod {
	list := make([]*pleg.Pod, n)
	for i := range list {
		uid := types.UID(fmt.Sprintf("pod-%05d", i))
		list[i] = plegtest.NewPod(uid, plegtest.Running(string(uid)+"-a"))
	}
	return list
}

// bare is a pod without the sandbox that NewPod gives it.
func bare(uid types.UID, containers ...*pleg.Container) *pleg.Pod {
	return &pleg.Pod{ID: uid, Name: string(uid), Namespace: "default", Containers: containers}
}

// statusOf is a status that agrees with a pod without sandboxes.
func statusOf(p *pleg.Pod) *pleg.PodStatus {
	status := &pleg.PodStatus{ID: p.ID, Name: p.Name, Namespace: p.Namespace}
	for _, c := range p.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, &pleg.Status{ID: c.ID, Name: c.Name, State: c.State})
	}
	return status
}

// read returns what a channel of events has now, a line each, by pod.
func read(ch <-chan *pleg.PodLifecycleEvent) []string {
	var events []*pleg.PodLifecycleEvent
	for {
		select {
		case e, open := <-ch:
			if open {
				events = append(events, e)
				continue
			}
			return append(lines(events), "closed")
		default:
			return lines(events)
		}
	}
}

// lines returns events by pod, those of one in their order.
func lines(events []*pleg.PodLifecycleEvent) (lines []string) {
	slices.SortStableFunc(events, func(a, b *pleg.PodLifecycleEvent) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range events {
		lines = append(lines, line(e))
	}
	return lines
}

// line is an event in one line.
func line(e *pleg.PodLifecycleEvent) string {
	if e.Data == nil {
		return fmt.Sprintf("%s %s", e.ID, e.Type)
	}
	return fmt.Sprintf("%s %s %s", e.ID, strings.TrimPrefix(string(e.Type), "Container"), e.Data)
}

// want compares lines.
func want(t *testing.T, what string, got []string, lines ...string) {
	t.Helper()
	if diff := gocmp.Diff(lines, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// replay keeps what the events that were read say there is.
type replay struct {
	t     testing.TB
	state map[string]pleg.PodLifeCycleEventType // by container ID
}

// take applies one event, and fails if it is out of order or repeated.
func (r *replay) take(e *pleg.PodLifecycleEvent) {
	r.t.Helper()
	if e.Type == pleg.PodSync {
		return
	}
	id := e.Data.(string)
	was, known := r.state[id]
	switch e.Type {
	case pleg.ContainerStarted:
		if known {
			r.t.Errorf("%s after %s", line(e), was)
		}
	case pleg.ContainerDied:
		if was == pleg.ContainerDied || was == pleg.ContainerRemoved {
			r.t.Errorf("%s after %s", line(e), was)
		}
	case pleg.ContainerRemoved:
		if was != pleg.ContainerDied {
			r.t.Errorf("%s after %q", line(e), was)
		}
	default:
		r.t.Errorf("%s must not be delivered", line(e))
	}
	r.state[id] = e.Type
}

// present returns what runs and what has exited, by the events.
func (r *replay) present() map[string]pleg.State {
	present := make(map[string]pleg.State)
	for id, last := range r.state {
		switch last {
		case pleg.ContainerStarted:
			present[id] = pleg.ContainerStateRunning
		case pleg.ContainerDied:
			present[id] = pleg.ContainerStateExited
		default:
		}
	}
	return present
}

// equals fails unless the events read say what the pods say.
func (r *replay) equals(pods []*pleg.Pod) {
	r.t.Helper()
	got := r.present()
	n := 0
	for _, p := range pods {
		for _, list := range [][]*pleg.Container{p.Containers, p.Sandboxes} {
			for _, c := range list {
				n++
				if got[c.ID.ID] != c.State {
					r.t.Errorf("%s is %s; the events say %q", c.ID.ID, c.State, got[c.ID.ID])
				}
			}
		}
	}
	if n != len(got) {
		r.t.Errorf("there are %d containers; the events say %d", n, len(got))
	}
}

func newReplay(t testing.TB) *replay {
	return &replay{t, make(map[string]pleg.PodLifeCycleEventType)}
}

// epoch is when the time of a test begins that needs dates.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// fresh reports whether a read is answered without blocking.
func fresh(c *pleg.PodCache, uid types.UID, minTime time.Time) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := c.LookupNewerThan(ctx, uid, minTime)
	return !errors.Is(err, context.Canceled)
}

// wantMetric compares a counter or gauge with a value; labels are pairs.
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

// healthy fails unless the generator is healthy.
func healthy(t *testing.T, g *pleg.GenericPLEG) {
	t.Helper()
	if ok, err := g.Healthy(); !ok || err != nil {
		t.Fatalf("not healthy: %v", err)
	}
}

// unhealthy fails unless the generator is unhealthy and the error has all the parts,
// the first at its beginning.
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

// logLines keeps what was logged.
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

// atOnce reports whether call returns without the clock moving on.
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

// scripted is a runtime that answers what the test says, however bad.
type scripted struct {
	pods   func() ([]*pleg.Pod, error)
	status func(pod *pleg.Pod) (*pleg.PodStatus, error)
	pod    func(uid types.UID) (*pleg.Pod, error)
}

func (s *scripted) GetPods(context.Context, bool) ([]*pleg.Pod, error) { return s.pods() }

func (s *scripted) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return s.status(p)
}

func (s *scripted) GetPod(_ context.Context, uid types.UID) (*pleg.Pod, error) { return s.pod(uid) }

// instead makes it the runtime of a node.
func (s *scripted) instead(*plegtest.Runtime) pleg.Runtime { return s }

// late is a runtime that answers when the test says so, whatever became of the
// context.
type late struct {
	pleg.Runtime
	pods, status chan struct{} // nil for at once
}

func (l late) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	if l.pods != nil {
		<-l.pods
	}
	return l.Runtime.GetPods(context.WithoutCancel(ctx), all)
}

func (l late) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if l.status != nil {
		<-l.status
	}
	return l.Runtime.GetPodStatus(context.WithoutCancel(ctx), pod)
}

// slowLogger keeps the loop busy when it logs a message.
func slowLogger(message string, slow func()) logr.Logger {
	return funcr.New(func(_, args string) {
		if strings.Contains(args, message) {
			slow()
		}
	}, funcr.Options{Verbosity: 5})
}

// heapInUse returns the size of what is reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first has finalized, and what pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // a heap is not that large
}
