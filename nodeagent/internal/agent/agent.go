// Package agent runs pods. It shows how to use the library; the other packages implement rules of
// Kubernetes. Its parts have the names of the kubelet's: the syncLoop assigns pods to workers and
// never waits for the runtime. A worker reads its pod's status, takes one action, and reads the
// status again. README maps each part to the kubelet's.
package agent

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/prober"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/nodeagent/internal/status"
	"github.com/kubepleg/pleg/plegz"
	"github.com/kubepleg/pleg/podworkers"
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
	Sink    status.Sink
	Adopted []*v1.Pod
	// OnStatus is called with every new status.
	OnStatus func(*v1.Pod)
	Registry *prometheus.Registry
	Logger   klog.Logger
	// Clock gives the time to the agent and the library. Timers are real.
	Clock clock.Clock
}

// Agent runs pods.
type Agent struct {
	Config
	generator        *pleg.GenericPLEG
	cache            *pleg.PodCache
	runtimeState     runtimeState
	podManager       podManager
	statusManager    *status.Manager
	probeManager     *prober.Manager
	containerDeletor *podContainerDeletor
	podWorkers       *podworkers.Workers // set by Run
	configCh         chan struct{}       // capacity 1; wakes the syncLoop when the wanted pods may have changed
	skipped          atomic.Bool         // true if a worker has skipped its pod because of a runtime error
	joined           sync.WaitGroup      // all goroutines except those of podWorkers

	mu      sync.Mutex
	workers map[types.UID]*podWorker // guarded by mu
}

// New returns an agent. The agent does nothing before Run is called. The caller must call Run.
func New(config Config) *Agent {
	a := &Agent{Config: config, cache: pleg.NewCache(), workers: map[types.UID]*podWorker{},
		configCh: make(chan struct{}, 1), runtimeState: runtimeState{clock: config.Clock}}
	a.generator = pleg.New(a.Reader, pleg.WithCache(a.cache), pleg.WithClock(a.Clock),
		pleg.WithRegisterer(a.Registry), pleg.WithLogger(a.Logger))
	a.runtimeState.addHealthCheck("PLEG", a.generator.Healthy)
	a.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "Always 1.",
		// The queries of kubernetes-mixin join with this metric.
		ConstLabels: prometheus.Labels{"node": a.NodeName}}, func() float64 { return 1 }))
	a.statusManager = status.NewManager(a.Sink, a.Adopted, a.Logger, a.OnStatus)
	a.probeManager = prober.NewManager(prober.Config{Runtime: a.Runtime, Clock: a.Clock, GetPod: a.statusManager.GetPod,
		OnUpdate: a.handleProbeSync, Go: a.joined.Go, Registerer: a.Registry, Logger: a.Logger})
	a.containerDeletor = newPodContainerDeletor(deleteContainer(a.Runtime), maxContainers, a.Logger)
	return a
}

// SetPods sets the pods that the agent runs. The agent ends its other pods. SetPods is safe for
// concurrent use.
func (a *Agent) SetPods(pods []*v1.Pod) {
	a.podManager.setPods(pods)
	a.requestHandlePods()
}

// requestHandlePods makes the syncLoop call handlePods. It does not block.
func (a *Agent) requestHandlePods() {
	select {
	case a.configCh <- struct{}{}:
	default:
	}
}

// Run runs the pods until ctx ends. It must be called only once. When Run returns, the agent's
// goroutines have ended, but the pods continue to run.
func (a *Agent) Run(ctx context.Context) {
	a.podWorkers = podworkers.New(a.generator, podworkers.Options{Sync: a.syncPod, OnError: a.syncFailed})
	wake := func(event *pleg.PodLifecycleEvent) { a.podWorkers.Wake(event.ID) }
	a.joined.Go(func() {
		_ = a.generator.Handle(ctx, pleg.Handler{ // returns when ctx ends
			// A removed container is worth a sync: its sandbox or the rest of its pod may now be removed.
			OnContainerStarted: wake, OnContainerDied: wake, OnContainerRemoved: wake, OnPodSync: wake,
			OnSynced: a.requestHandlePods,
		})
	})
	a.joined.Go(func() { wait.UntilWithContext(ctx, a.updateRuntimeUp, runtimeStatusPeriod) })
	a.joined.Go(func() { a.statusManager.Run(ctx) })
	a.joined.Go(func() { a.containerDeletor.run(ctx) })
	a.generator.Start(ctx)
	a.syncLoop(ctx)
	a.podWorkers.Wait() // before joined.Wait, because workers start probes
	a.joined.Wait()
	a.statusManager.SyncAll() // the workers' last statuses
	a.generator.Stop()
}

// handleProbeSync publishes the status of a pod with a new probe result, and wakes the pod's worker.
func (a *Agent) handleProbeSync(uid types.UID) {
	if w := a.worker(uid); w != nil { // the worker may have ended meanwhile
		w.publish()
		a.podWorkers.Wake(uid)
	}
}

// Pods returns the pods with their statuses.
func (a *Agent) Pods() *v1.PodList {
	return &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: a.statusManager.Pods()}
}

// Handler serves /healthz, /metrics and, at /, the library's page of the node.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if why := a.runtimeState.runtimeErrors(); why != nil {
			http.Error(w, why.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{}))
	mux.Handle("/", plegz.Handler(a.generator, plegz.WithNodeName(a.NodeName)))
	return mux
}
