// Package agent runs pods. It shows how to use the library; the other packages implement rules of
// Kubernetes. A loop assigns pods to workers and never waits for the runtime. A worker of package
// podworkers reads its pod's status, takes one action, and reads the status again. A pod's
// published status comes from the library's cache.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/manifest"
	"github.com/kubepleg/pleg/nodeagent/internal/prober"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/plegz"
	"github.com/kubepleg/pleg/podworkers"
)

const (
	// housekeepingPeriod is how often the agent looks for unwanted pods. readyPeriod is how often
	// it asks whether the runtime is ready.
	housekeepingPeriod, readyPeriod = 2 * time.Second, 2 * time.Second
	// sickPause is how long the agent waits before it checks the health of a sick runtime again.
	sickPause = 100 * time.Millisecond
	// patience is how long the runtime may be sick before the agent logs an error. It is not 0,
	// because the runtime counts as sick until the first list has ended.
	patience = time.Second
)

// Config configures an Agent.
type Config struct {
	// Reader makes the library's calls to the runtime. Runtime makes all other calls.
	Reader  pleg.Runtime
	Runtime *runtime.Client
	// NodeName is the node's name in the metrics, and may be empty. NodeIP is the address of pods
	// on the host's network.
	NodeName, NodeIP string
	// Sink stores the statuses of pods. Adopted contains the pods that an earlier agent stored.
	Sink    Sink
	Adopted []*v1.Pod
	// OnStatus is called with every new status.
	OnStatus func(*v1.Pod)
	Registry *prometheus.Registry
	Logger   klog.Logger
	// Clock is the clock of the library.
	Clock clock.Clock
}

// Agent runs pods.
type Agent struct {
	Config
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
	probes    *prober.Manager
	status    *published
	pods      *podworkers.Workers // set by Run
	changed   chan struct{}       // capacity 1; wakes the loop
	joined    sync.WaitGroup      // all goroutines except those of workers

	mu       sync.Mutex
	notReady error                 // why the runtime is not ready, or nil; guarded by mu
	wanted   map[types.UID]*v1.Pod // nil before SetPods; the map is replaced, never modified; guarded by mu
	workers  map[types.UID]*worker // guarded by mu
}

// New returns an agent. The agent does nothing before Run is called. The caller must call Run.
func New(config Config) *Agent {
	a := &Agent{Config: config, cache: pleg.NewCache(), workers: map[types.UID]*worker{},
		changed: make(chan struct{}, 1), notReady: errors.New("the runtime has not reported it is ready")}
	a.generator = pleg.New(a.Reader, pleg.WithCache(a.cache), pleg.WithClock(a.Clock),
		pleg.WithRegisterer(a.Registry), pleg.WithLogger(a.Logger.V(1)))
	a.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "Always 1.",
		// The queries of kubernetes-mixin join with this metric.
		ConstLabels: prometheus.Labels{"node": a.NodeName}}, func() float64 { return 1 }))
	a.status = newPublished(a.Sink, a.Adopted, a.Logger, a.OnStatus)
	a.probes = &prober.Manager{Runtime: a.Runtime, Status: a.status.get, Changed: a.probed, Begin: a.joined.Go,
		Logger: a.Logger}
	return a
}

// SetPods sets the pods that the agent runs. The agent ends its other pods. SetPods is safe for
// concurrent use.
func (a *Agent) SetPods(pods []*v1.Pod) {
	wanted := make(map[types.UID]*v1.Pod, len(pods))
	for _, pod := range pods {
		wanted[pod.UID] = pod
	}
	a.mu.Lock()
	a.wanted = wanted
	a.mu.Unlock()
	a.reconcile()
}

// reconcile asks the loop to compare the wanted pods with the workers. It does not block.
func (a *Agent) reconcile() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Run runs the pods until ctx ends. It must be called only once. When Run returns, the agent's
// goroutines have ended, but the pods continue to run.
func (a *Agent) Run(ctx context.Context) {
	a.pods = podworkers.New(a.generator, podworkers.Options{Sync: a.sync, OnError: a.syncFailed})
	wake := func(event *pleg.PodLifecycleEvent) { a.pods.Wake(event.ID) }
	a.joined.Go(func() {
		_ = a.generator.Handle(ctx, pleg.Handler{ // returns when ctx ends
			OnContainerStarted: wake, OnContainerDied: wake, OnPodSync: wake, OnSynced: a.reconcile,
		})
	})
	a.joined.Go(func() { a.watchRuntime(ctx) })
	a.generator.Start(ctx)
	a.loop(ctx)
	a.pods.Wait() // before joined.Wait, because workers start probes
	a.joined.Wait()
	a.generator.Stop()
}

// loop assigns pods to workers until ctx ends. While the runtime is sick, loop only repeats the
// health check.
func (a *Agent) loop(ctx context.Context) {
	housekeeping := time.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	for a.awaitHealth(ctx) && ctx.Err() == nil {
		a.mu.Lock()
		a.reconcileLocked(ctx)
		a.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-a.changed:
		case <-housekeeping.C:
		}
	}
}

// reconcileLocked starts a worker for every wanted pod, and makes workers remove unwanted pods. A
// new pod waits until an old pod with the same name or UID is gone. reconcileLocked also looks for
// unwanted pods in the runtime and on disk. It ignores pods with invalid names, because the names
// become parts of paths.
func (a *Agent) reconcileLocked(ctx context.Context) {
	if a.wanted == nil || !a.generator.HasSynced() {
		return // the wanted or the existing pods are not known yet
	}
	names, exists := map[klog.ObjectRef]types.UID{}, sets.KeySet(a.wanted)
	for uid, w := range a.workers {
		pod := w.pod.Load()
		exists.Insert(uid)
		names[klog.KObj(pod)] = uid
		if want := a.wanted[uid]; want == nil || klog.KObj(want) != klog.KObj(pod) {
			w.unwant()
			a.pods.Wake(uid)
		}
	}
	for uid, pod := range a.wanted {
		switch holder, taken := names[klog.KObj(pod)]; {
		case taken && holder != uid:
		case a.workers[uid] == nil:
			a.beginLocked(ctx, pod, false)
		case a.workers[uid].wanted.Err() == nil && a.workers[uid].pod.Swap(pod) != pod:
			a.pods.Wake(uid)
		}
	}
	for _, pod := range a.generator.Pods() {
		if exists.Has(pod.ID) {
			continue
		}
		seen, _, err := a.cache.Lookup(pod.ID)
		if orphan := a.Runtime.Orphan(seen); err == nil && orphan != nil && len(manifest.ValidateNames(orphan)) == 0 {
			a.Logger.Info("A pod that nobody wants is removed", "pod", klog.KObj(orphan), "uid", pod.ID)
			a.beginLocked(ctx, orphan, true).unwant()
		}
		exists.Insert(pod.ID)
	}
	err := a.Runtime.Collect(exists.Has)
	for _, pod := range a.status.list() {
		if !exists.Has(pod.UID) {
			err = errors.Join(err, a.status.remove(&pod))
		}
	}
	if err != nil {
		a.Logger.Error(err, "Something is left on disk of pods that are no more")
	}
}

// awaitHealth returns true once pods can be synced, or false if ctx ends first.
func (a *Agent) awaitHealth(ctx context.Context) bool {
	complaint := time.AfterFunc(patience, func() { a.Logger.Error(a.sick(), "Pods are not synced") })
	err := wait.PollUntilContextCancel(ctx, sickPause, true,
		func(context.Context) (bool, error) { return a.sick() == nil, nil })
	if !complaint.Stop() && err == nil {
		a.Logger.Info("The runtime is well")
	}
	return err == nil
}

// probed publishes the outcome of a pod's probe, and wakes the pod's worker.
func (a *Agent) probed(uid types.UID) {
	a.mu.Lock()
	w := a.workers[uid]
	a.mu.Unlock()
	if w != nil { // the worker may have ended meanwhile
		w.publish()
		a.pods.Wake(uid)
	}
}

// watchRuntime asks every readyPeriod whether the runtime is ready, until ctx ends.
func (a *Agent) watchRuntime(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := a.Runtime.Ready(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.notReady = err
	}, readyPeriod)
}

// sick returns nil if pods can be synced, or else the error of the health check.
func (a *Agent) sick() error {
	if healthy, why := a.generator.Healthy(); !healthy {
		return why
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notReady
}

// Pods returns the pods with their statuses.
func (a *Agent) Pods() *v1.PodList {
	return &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: a.status.list()}
}

// Handler serves /healthz, /metrics and, at /, the library's page of the node.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if why := a.sick(); why != nil {
			http.Error(w, why.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{}))
	mux.Handle("/", plegz.Handler(a.generator, plegz.WithNodeName(a.NodeName)))
	return mux
}
