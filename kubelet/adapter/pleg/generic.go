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

// GenericPLEG is the library's generator with the kubelet's interface. Methods that differ between
// releases are in interface.go, requests.go and conditions.go.
type GenericPLEG struct {
	*pleg.GenericPLEG
	events     chan *PodLifecycleEvent
	conditions conditions

	mu      sync.Mutex
	stop    chan struct{} // nil while stopped; guarded by mu
	stopped sync.WaitGroup
}

// newGenericPLEG returns a generator that writes statuses to cache and events to eventChannel.
//
// If the gate EventedPLEG is on, the period in relistDuration is the kubelet's period for nodes
// with an event stream. The generator ignores it and makes a full list every second. If the gate
// PLEGExitEvents is off, the generator uses no exit events.
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
		// A generator with another runtime registers no metrics. The kubelet's tests make many such
		// generators, and the registry is global.
		options = append(options, pleg.WithRuntimeRequestTimeout(node.timeout),
			pleg.WithRegisterer(legacyregistry.Registerer()))
	}
	// The fake cache of the kubelet's tests has no PLEGCache. It asks the runtime at every read.
	pods := pleg.NewCache()
	if own, ok := cache.(interface{ PLEGCache() *pleg.PodCache }); ok {
		pods = own.PLEGCache()
	}
	return &GenericPLEG{
		GenericPLEG: pleg.NewGenericPLEG(adapted, cap(eventChannel), period, pods, clock, options...),
		events:      eventChannel,
	}
}

// Watch returns the kubelet's channel. If the channel is full, updates are coalesced; no state is
// lost.
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

// Stop stops the generator. It returns when all its goroutines have ended.
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

// relist lists all pods. If the generator is stopped, as in tests, relist also delivers the events
// that fit into the channel.
func (g *GenericPLEG) relist(ctx context.Context) {
	_ = g.GenericPLEG.Relist(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	for found := g.GenericPLEG.Watch(); g.stop == nil && len(found) > 0 && len(g.events) < cap(g.events); {
		g.events <- g.conditions.convert(<-found)
	}
}

// deliver sends the library's events to the kubelet's channel, in the kubelet's form.
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

// syncAfter is the delay of the PodSync after an unconfirmed exit. The PodSync makes the kubelet
// publish the successor, so the delay is a little longer than publishAfter of package container.
const syncAfter = 5*time.Second + 100*time.Millisecond

// syncLate sends a PodSync for the pod of an exit event if the runtime has not confirmed the exit
// within syncAfter. If the runtime confirms the exit earlier, the library sends the PodSync.
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
