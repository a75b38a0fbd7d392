// Package agent is the sync loop: one goroutine that hears of everything and tells the workers. It never waits for
// the runtime.
package agent

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/prober"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/status"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/worker"
)

const (
	// housekeepingPeriod is how often the agent looks for what nobody wants any more.
	housekeepingPeriod = 2 * time.Second
	// readyPeriod is how often the runtime is asked whether it is ready, and readyTimeout how old its last good answer
	// may be.
	readyPeriod  = 5 * time.Second
	readyTimeout = 30 * time.Second
	// The wait of a loop that does nothing because the runtime is sick.
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// lateReason is when a container that has died is inspected again: containerd learns late that one was OOMKilled.
	lateReason = 2 * time.Second
)

// Config is what an Agent needs.
type Config struct {
	// Reader is the runtime as the library reads it, Conn the connection for everything else.
	Reader pleg.Runtime
	Conn   grpc.ClientConnInterface
	// Runtime says where pods have their files and cgroups.
	Runtime runtime.Options
	// NodeName is the node's name in the metrics; empty for none.
	NodeName string
	// NodeIP is the address of pods on the host's network.
	NodeIP string
	// Sink is where statuses go; Adopted are those that an agent before this one wrote.
	Sink    status.Sink
	Adopted []*v1.Pod
	// OnStatus is called with every new status; it may be nil.
	OnStatus func(*v1.Pod)
	Registry *prometheus.Registry
	Logger   klog.Logger
	// Options are further ones of the generator, for tests.
	Options []pleg.Option
}

// Agent runs pods.
type Agent struct {
	config    Config
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
	runtime   *runtime.Client
	workers   *worker.Pool
	probes    *prober.Manager
	status    *status.Manager
	inbox     inbox
	ready     readiness

	// Owned by the loop.

	wanted    map[types.UID]*v1.Pod // nil until the manifests were read
	due       map[types.UID]time.Time
	reinspect map[types.UID]time.Time
	pause     time.Duration // 0 while the runtime is well
}

// New returns an agent that does nothing before Run.
func New(config Config) *Agent {
	a := &Agent{config: config, cache: pleg.NewCache(), runtime: runtime.New(config.Conn, config.Runtime),
		inbox: inbox{wake: make(chan struct{}, 1)}, due: map[types.UID]time.Time{}, reinspect: map[types.UID]time.Time{}}
	options := append([]pleg.Option{pleg.WithRegisterer(config.Registry), pleg.WithNodeName(config.NodeName),
		pleg.WithLogger(config.Logger.V(1))}, config.Options...)
	a.generator = pleg.NewGenericPLEG(config.Reader, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod,
		a.cache, clock.RealClock{}, options...)
	a.status = status.NewManager(config.Sink, config.Adopted, config.Logger, config.OnStatus)
	a.probes = prober.New(prober.Config{
		Exec: a.runtime, Status: a.status.Get, Changed: a.probed, Logger: config.Logger,
	}, config.Registry)
	a.workers = worker.NewPool(worker.Config{
		Cache: a.cache, Runtime: a.runtime, Probes: a.probes, Status: a.status, NodeIP: config.NodeIP,
		Listed:  func(uid types.UID) *pleg.Pod { return a.generator.Pods().FindPodByID(uid) },
		Suspend: a.suspend, SyncAt: a.inbox.syncAt, Finished: a.inbox.finish, Logger: config.Logger,
	})
	return a
}

// suspend uses the generator's Suspend, if it has one.
func (a *Agent) suspend(uid types.UID) (resume func()) {
	if s, ok := any(a.generator).(interface {
		Suspend(types.UID) (resume func())
	}); ok {
		return s.Suspend(uid)
	}
	return func() {}
}

// probed hears of a result of a probe, and passes it on to the status and to the loop.
func (a *Agent) probed(pod *v1.Pod, kind prober.Kind, success bool) {
	if kind != prober.Liveness || !success {
		a.status.SetReadiness(pod, a.probes)
		a.inbox.syncAt(pod.UID, time.Now())
	}
}

// SetPods has these pods run and no others. It may be called at any time.
func (a *Agent) SetPods(pods []*v1.Pod) { a.inbox.setPods(pods) }

// Drain has no pods run, and returns when all are gone, or ctx ends.
func (a *Agent) Drain(ctx context.Context) error {
	a.SetPods(nil)
	ticker := time.NewTicker(firstPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
			if a.inbox.isEmpty() && len(a.workers.Pods()) == 0 {
				return nil
			}
		}
	}
}

// Status returns the statuses of the pods.
func (a *Agent) Status() *v1.PodList { return a.status.List() }

// Run runs the pods until ctx ends. When it returns, everything that it started in this process has ended, and the
// pods run on.
func (a *Agent) Run(ctx context.Context) {
	var joined sync.WaitGroup
	events := a.generator.Subscribe(ctx, pleg.DefaultChannelCapacity)
	a.generator.Start()
	joined.Go(func() { a.ready.watch(ctx, a.runtime, a.inbox.signal) })
	a.loop(ctx, events)
	a.workers.Wait()
	a.probes.Wait()
	joined.Wait()
	a.status.Sync(context.WithoutCancel(ctx))
	a.generator.Stop()
}

// loop is the sync loop. While the runtime is sick it does nothing, and looks again after a pause; what it has to
// hear of waits meanwhile, coalesced.
func (a *Agent) loop(ctx context.Context, events <-chan *pleg.PodLifecycleEvent) {
	housekeeping := time.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() { a.status.Run(ctx) })
	for {
		if why := a.sick(); why != nil {
			if a.pause == 0 {
				a.config.Logger.Error(why, "Pods are not synced")
			}
			a.pause = min(max(2*a.pause, firstPause), longestPause)
			timer.Reset(a.pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			continue
		}
		if a.pause > 0 {
			a.pause = 0
			a.config.Logger.Info("The runtime is well")
		}
		timer.Reset(time.Until(a.next()))
		select {
		case <-ctx.Done():
			return
		case event, open := <-events:
			if !open {
				return
			}
			a.happened(event)
		case <-a.inbox.wake:
			a.hear(ctx)
		case <-housekeeping.C:
			a.housekeep(ctx)
		case <-timer.C:
			a.overdue()
		}
	}
}

// next returns when the next pod is due, or a long time from now.
func (a *Agent) next() time.Time {
	next := time.Now().Add(time.Hour)
	for _, times := range []map[types.UID]time.Time{a.due, a.reinspect} {
		for _, at := range times {
			if at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// overdue wakes the pods that are due.
func (a *Agent) overdue() {
	now := time.Now()
	for uid, at := range a.due {
		if !at.After(now) {
			delete(a.due, uid)
			a.workers.Wake(uid)
		}
	}
	for uid, at := range a.reinspect {
		if !at.After(now) {
			delete(a.reinspect, uid)
			a.generator.RequestReinspect(uid)
		}
	}
}

// happened hears of an event.
func (a *Agent) happened(event *pleg.PodLifecycleEvent) {
	a.config.Logger.V(2).Info("Event", "event", event.String())
	switch event.Type {
	case pleg.ContainerDied:
		a.reinspect[event.ID] = time.Now().Add(lateReason)
	case pleg.ContainerRemoved:
		return // there is nothing to do about it
	default:
	}
	a.workers.Wake(event.ID)
}
