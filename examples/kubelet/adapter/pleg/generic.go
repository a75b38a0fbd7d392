package pleg

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/legacyregistry"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// ExitEvents is the gate of the exit events, of containerd's own stream or CRI-O's files.
const ExitEvents featuregate.Feature = "PLEGExitEvents"

func init() {
	utilruntime.Must(utilfeature.DefaultMutableFeatureGate.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		ExitEvents: {Default: true, PreRelease: featuregate.Beta},
	}))
}

// GenericPLEG is the library's generator under the kubelet's interface.
type GenericPLEG struct {
	*pleg.GenericPLEG
	events   chan *PodLifecycleEvent
	onDemand bool

	mu      sync.Mutex
	stop    chan struct{} // nil while stopped; guarded by mu
	stopped sync.WaitGroup
}

// NewGenericPLEG returns a generator that writes cache and sends to eventChannel.
//
// Where the gate EventedPLEG is on, relistDuration has the period that holds while the
// event stream is connected; without it, full lists are made every second. Where the gate
// PLEGOnDemandRelist is off, there are full lists only, and no event stream. Where the gate
// PLEGExitEvents is off, exits are learnt from CRI alone.
func NewGenericPLEG(logger klog.Logger, runtime kubecontainer.Runtime, eventChannel chan *PodLifecycleEvent,
	relistDuration *RelistDuration, cache kubecontainer.Cache, clock clock.Clock) PodLifecycleEventGenerator {
	if cache == nil {
		panic("pleg.NewGenericPLEG: the cache is nil")
	}
	period := relistDuration.RelistPeriod
	options := []pleg.Option{pleg.WithLogger(logger), pleg.WithRelistThreshold(relistDuration.RelistThreshold)}
	if utilfeature.DefaultFeatureGate.Enabled(features.EventedPLEG) {
		options = append(options, pleg.WithConnectedRelistPeriod(period))
		period = pleg.DefaultRelistPeriod
	}
	onDemand := utilfeature.DefaultFeatureGate.Enabled(features.PLEGOnDemandRelist)
	if !onDemand {
		options = append(options, pleg.WithPollingOnly())
	}
	var adapted pleg.Runtime = podRuntime{runtime}
	if node, ok := runtime.(*nodeRuntime); ok {
		var err error
		exits := onDemand && utilfeature.DefaultFeatureGate.Enabled(ExitEvents)
		if adapted, err = node.adapt(exits); err != nil {
			logger.Error(err, "No exit events")
		}
		// Only a node's generator has metrics: the kubelet's tests make many generators.
		options = append(options, pleg.WithRuntimeRequestTimeout(node.timeout),
			pleg.WithRegisterer(legacyregistry.Registerer()))
	}
	// The kubelet's tests have a fake cache, which asks the runtime at every read.
	pods := pleg.NewCache()
	if own, ok := cache.(interface{ PLEGCache() *pleg.PodCache }); ok {
		pods = own.PLEGCache()
	}
	return &GenericPLEG{
		GenericPLEG: pleg.NewGenericPLEG(adapted, cap(eventChannel), period, pods, clock, options...),
		events:      eventChannel,
		onDemand:    onDemand,
	}
}

// NewEventedPLEG returns genericPleg, which reads the runtime's events itself.
func NewEventedPLEG(_ klog.Logger, _ kubecontainer.Runtime, _ internalapi.RuntimeService, _ chan *PodLifecycleEvent,
	_ kubecontainer.Cache, genericPleg PodLifecycleEventGenerator, _ int, _ *RelistDuration, _ clock.Clock,
) (PodLifecycleEventGenerator, error) {
	return genericPleg, nil
}

// Watch returns the kubelet's channel. What does not fit into it is coalesced, not lost.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.events }

// RequestRelist has the pod listed at once, where the gate PLEGOnDemandRelist is on.
func (g *GenericPLEG) RequestRelist(uid types.UID) {
	if g.onDemand {
		g.GenericPLEG.RequestRelist(uid)
	}
}

// Start begins to relist and to deliver. A second Start does nothing.
func (g *GenericPLEG) Start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		return
	}
	g.GenericPLEG.Start(context.Background())
	stop := make(chan struct{})
	g.stop = stop
	g.stopped.Go(func() { g.deliver(stop) })
}

// Stop returns when all that Start started has ended.
func (g *GenericPLEG) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop == nil {
		return
	}
	close(g.stop)
	g.stop = nil
	g.stopped.Wait()
	g.GenericPLEG.Stop()
}

// Relist lists all pods. While the generator is stopped, as in tests, it delivers what it
// has found, as far as that fits, before it returns.
func (g *GenericPLEG) Relist() {
	_ = g.GenericPLEG.Relist(context.Background())
	g.mu.Lock()
	defer g.mu.Unlock()
	for found := g.GenericPLEG.Watch(); g.stop == nil && len(found) > 0 && len(g.events) < cap(g.events); {
		g.events <- convertEvent(<-found)
	}
}

// deliver passes the library's events on in the kubelet's form.
func (g *GenericPLEG) deliver(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case e := <-g.GenericPLEG.Watch():
			select {
			case <-stop:
				return
			case g.events <- convertEvent(e):
			}
		}
	}
}

func convertEvent(e *pleg.PodLifecycleEvent) *PodLifecycleEvent {
	return &PodLifecycleEvent{ID: e.ID, Type: PodLifeCycleEventType(e.Type), Data: e.Data}
}
