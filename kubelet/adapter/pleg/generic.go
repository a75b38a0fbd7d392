package pleg

import (
	"context"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// ExitEvents is the feature gate for exit events from containerd's own stream or CRI-O's files.
const ExitEvents featuregate.Feature = "PLEGExitEvents"

func init() {
	utilruntime.Must(utilfeature.DefaultMutableFeatureGate.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		ExitEvents: {Default: true, PreRelease: featuregate.Beta},
	}))
}

// GenericPLEG is the library's generator with the kubelet's interface. interface.go, requests.go and
// conditions.go have the parts of the interface that differ between releases.
type GenericPLEG struct {
	*pleg.GenericPLEG
	events     chan *PodLifecycleEvent
	conditions conditions

	mu      sync.Mutex
	stop    chan struct{} // nil while stopped; guarded by mu
	stopped sync.WaitGroup
}

// newGenericPLEG returns a generator that writes cache and sends to eventChannel.
//
// If the gate EventedPLEG is on, relistDuration has the kubelet's period for a node with an event
// stream. The generator ignores it and makes a full list every second. If the gate PLEGExitEvents is
// off, exits come from CRI alone.
func newGenericPLEG(logger klog.Logger, runtime kubecontainer.Runtime, eventChannel chan *PodLifecycleEvent,
	relistDuration *RelistDuration, cache kubecontainer.Cache, clock clock.Clock, options ...pleg.Option) *GenericPLEG {
	if cache == nil {
		panic("pleg.NewGenericPLEG: the cache is nil")
	}
	period := relistDuration.RelistPeriod
	options = append(options, pleg.WithLogger(logger), pleg.WithRelistThreshold(relistDuration.RelistThreshold))
	if utilfeature.DefaultFeatureGate.Enabled(features.EventedPLEG) {
		period = pleg.DefaultRelistPeriod
	}
	var adapted pleg.Runtime = podRuntime{runtime}
	if node, ok := runtime.(*nodeRuntime); ok {
		var err error
		if adapted, err = node.adapt(utilfeature.DefaultFeatureGate.Enabled(ExitEvents)); err != nil {
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
	}
}

// Watch returns the kubelet's channel. When the channel is full, updates are coalesced; no state is lost.
func (g *GenericPLEG) Watch() chan *PodLifecycleEvent { return g.events }

// start starts the generator and the delivery of events. A second start does nothing.
func (g *GenericPLEG) start(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		return
	}
	g.GenericPLEG.Start(ctx)
	stop := make(chan struct{})
	g.stop = stop
	g.stopped.Go(func() { g.deliver(stop) })
}

// Stop returns when everything that Start started has ended.
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

// relist lists all pods. If the generator is stopped, as in tests, relist delivers the events before it
// returns, as far as they fit into the channel.
func (g *GenericPLEG) relist(ctx context.Context) {
	_ = g.GenericPLEG.Relist(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	for found := g.GenericPLEG.Watch(); g.stop == nil && len(found) > 0 && len(g.events) < cap(g.events); {
		g.events <- g.conditions.convert(<-found)
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
			case g.events <- g.conditions.convert(e):
			}
			if e.Type == pleg.ContainerDied && e.Status != nil && e.Status.Unconfirmed {
				g.stopped.Go(func() { g.syncLate(stop, e) })
			}
		}
	}
}

// syncAfter is how long after an unconfirmed exit the kubelet publishes the successor all the same:
// publishAfter of package container, and a moment.
const syncAfter = 5*time.Second + 100*time.Millisecond

// syncLate sends a PodSync for the pod of an exit event if the runtime has not confirmed the exit by
// syncAfter. When the runtime confirms the exit, the library sends a PodSync.
func (g *GenericPLEG) syncLate(stop <-chan struct{}, died *pleg.PodLifecycleEvent) {
	select {
	case <-stop:
		return
	case <-time.After(syncAfter):
	}
	pod, _ := g.Cache().Get(died.ID)
	if s := pod.FindContainerStatusByID(died.Status.ID.ID); s == nil || !s.Unconfirmed {
		return
	}
	select {
	case <-stop:
	case g.events <- &PodLifecycleEvent{ID: died.ID, Type: PodLifeCycleEventType(pleg.PodSync)}:
	}
}

func convertEvent(e *pleg.PodLifecycleEvent) *PodLifecycleEvent {
	return &PodLifecycleEvent{ID: e.ID, Type: PodLifeCycleEventType(e.Type), Data: e.Data}
}
