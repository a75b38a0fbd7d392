// Package agent runs pods, and is the part to read for the library: the rest of the agent is Kubernetes'. A loop gives
// pods to workers; it never waits for the runtime. Each pod has a worker of package podworkers, which looks at it, does
// one thing, and looks again. What is published of a pod is what the library's cache has of it.
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
	// The agent looks for what nobody wants any more, and asks the runtime whether it is ready, as often as this.
	housekeepingPeriod, readyPeriod = 2 * time.Second, 2 * time.Second
	// sickPause is the wait of a loop that does nothing because the runtime is sick.
	sickPause = 100 * time.Millisecond
	// patience is for how long that is nothing to speak of: the first list takes a moment.
	patience = time.Second
)

// Config is what an Agent needs.
type Config struct {
	// Reader is the runtime as the library reads it, Runtime is for everything else.
	Reader  pleg.Runtime
	Runtime *runtime.Client
	// NodeName is the node's name in the metrics; empty for none. NodeIP is the address of pods on the host's network.
	NodeName, NodeIP string
	// Sink is where statuses go; Adopted are those that an agent before this one wrote.
	Sink    Sink
	Adopted []*v1.Pod
	// OnStatus is called with every new status.
	OnStatus func(*v1.Pod)
	Registry *prometheus.Registry
	Logger   klog.Logger
	// Clock is the clock of what is seen and done.
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
	changed   chan struct{}       // capacity 1: the loop has something to do
	joined    sync.WaitGroup      // all goroutines but the workers'

	mu       sync.Mutex
	notReady error                 // why the runtime is not; guarded by mu
	wanted   map[types.UID]*v1.Pod // nil until the manifests were read; replaced, never modified; guarded by mu
	workers  map[types.UID]*worker // guarded by mu
}

// New returns an agent that does nothing before Run, which must be called.
func New(config Config) *Agent {
	a := &Agent{Config: config, cache: pleg.NewCache(), workers: map[types.UID]*worker{},
		changed: make(chan struct{}, 1), notReady: errors.New("the runtime has not reported it is ready")}
	a.generator = pleg.New(a.Reader, pleg.WithCache(a.cache), pleg.WithClock(a.Clock),
		pleg.WithRegisterer(a.Registry), pleg.WithLogger(a.Logger.V(1)))
	a.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"node": a.NodeName}}, func() float64 { return 1 })) // kubernetes-mixin joins with it
	a.status = newPublished(a.Sink, a.Adopted, a.Logger, a.OnStatus)
	a.probes = &prober.Manager{Runtime: a.Runtime, Status: a.status.get, Changed: a.probed, Begin: a.joined.Go,
		Logger: a.Logger}
	return a
}

// SetPods has these pods run and no others. It may be called at any time.
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

// reconcile has the loop compare the wanted pods with the workers, soon.
func (a *Agent) reconcile() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Run runs the pods until ctx ends, once. When it returns, the agent's goroutines have ended, and the pods run on.
func (a *Agent) Run(ctx context.Context) {
	a.pods = podworkers.New(a.generator, podworkers.Options{Sync: a.sync, OnError: a.syncFailed})
	wake := func(event *pleg.PodLifecycleEvent) { a.pods.Wake(event.ID) }
	a.joined.Go(func() {
		_ = a.generator.Handle(ctx, pleg.Handler{ // it ends with ctx
			OnContainerStarted: wake, OnContainerDied: wake, OnPodSync: wake, OnSynced: a.reconcile,
		})
	})
	a.joined.Go(func() { a.watchRuntime(ctx) })
	a.generator.Start(ctx)
	a.loop(ctx)
	a.pods.Wait() // first: workers begin probes
	a.joined.Wait()
	a.generator.Stop()
}

// loop gives pods to workers until ctx ends. While the runtime is sick it does nothing, and looks again after a pause.
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

// reconcileLocked gives every wanted pod a worker, and has the workers of others remove theirs. A pod waits until one
// of its name or its UID is gone. Then it looks for pods that nobody wants, in the runtime and on disk. One with names
// that no manifest may have is left alone: its files could be anywhere.
func (a *Agent) reconcileLocked(ctx context.Context) {
	if a.wanted == nil || !a.generator.HasSynced() {
		return // not all is known
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

// awaitHealth returns true once pods can be synced, false if ctx ends before.
func (a *Agent) awaitHealth(ctx context.Context) bool {
	complaint := time.AfterFunc(patience, func() { a.Logger.Error(a.sick(), "Pods are not synced") })
	err := wait.PollUntilContextCancel(ctx, sickPause, true,
		func(context.Context) (bool, error) { return a.sick() == nil, nil })
	if !complaint.Stop() && err == nil {
		a.Logger.Info("The runtime is well")
	}
	return err == nil
}

// probed passes a result of a probe on, to the status and to the worker.
func (a *Agent) probed(uid types.UID) {
	a.mu.Lock()
	w := a.workers[uid]
	a.mu.Unlock()
	if w != nil { // it may have ended meanwhile
		w.publish()
		a.pods.Wake(uid)
	}
}

// watchRuntime asks the runtime now and then whether it is ready, until ctx ends.
func (a *Agent) watchRuntime(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := a.Runtime.Ready(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.notReady = err
	}, readyPeriod)
}

// sick returns why pods cannot be synced, in the words of the health check; nil if they can.
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
