package pleg

import (
	"context"
	"fmt"

	"github.com/kubepleg/pleg/internal/calls"
)

// Healthy reports whether the generator works, and if not, why not. It reports false
// before the first successful relist; when the last one began longer ago than the
// threshold; and when the inspections of two pods or more have hung for longer than the
// threshold and no inspection of any pod has succeeded in that time. One pod that hangs
// never makes a node unhealthy: while pods hang, a healthy pod is inspected as a canary
// six times within the threshold.
//
// The error names the call that hangs, the pod or container that it is for, and for how
// long it has hung, or the last error. Healthy has no side effects and never blocks.
func (g *GenericPLEG) Healthy() (bool, error) {
	err := g.healthCheck().unhealthy()
	return err == nil, err
}

// HasSynced reports whether the first full list is complete: each pod in it was inspected,
// has failed to be, or is slow. HealthReport names those that fail or are slow. Once true
// it stays so. It never blocks.
func (g *GenericPLEG) HasSynced() bool {
	select {
	case <-g.loop.synced:
		return true
	default:
		return false
	}
}

// WaitForSync returns nil as soon as HasSynced is true. If ctx ends before, the error wraps
// its cause and says what is awaited, as Healthy does. It does not start the generator.
func (g *GenericPLEG) WaitForSync(ctx context.Context) error {
	if g.HasSynced() {
		return nil
	}
	select {
	case <-g.loop.synced:
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("pleg has not synced: %w: %w", g.healthCheck().unsynced(), context.Cause(ctx))
		if g.HasSynced() { // as ctx ended
			return nil
		}
		return err
	}
}

// Pods returns the pods as they were listed last, by UID, inspected or not. It never waits
// for the runtime. The cache's own methods must not call it.
func (g *GenericPLEG) Pods() Pods { return g.loop.pods() }

// HealthReport returns the health and the state that it is decided by. It has no side
// effects and never blocks.
func (g *GenericPLEG) HealthReport() HealthReport {
	h := g.healthCheck()
	r := h.report(g.streamStatus())
	r.BlockedReaders = g.blockedReaders()
	r.Runtime = g.described()
	r.CallsInFlight = g.reportedCalls()
	if _, ok := g.runtime.(CallReporter); !ok {
		r.CallsInFlight = h.inFlight(methodGetPods, methodGetPod, methodGetPodStatus)
	}
	backlogs := g.updates.Backlogs()
	r.Subscribers = len(backlogs)
	r.Backlog, r.NamedSubscribers = subscriberReports(backlogs)
	return r
}

// healthCheck returns the input of the health check. The runtime is asked for its calls
// without a lock held.
func (g *GenericPLEG) healthCheck() *healthCheck {
	state := g.loop.lastState()
	return &healthCheck{
		healthState: state, now: g.clock.Now(), threshold: g.threshold, started: g.started.Load(),
		inFlight: func(methods ...string) (list []RuntimeCall) {
			for _, info := range g.calls.InFlight(methods...) {
				list = append(list, runtimeCall(info))
			}
			return list
		},
		reported: g.reportedCalls,
	}
}

func (g *GenericPLEG) streamStatus() StreamReport {
	if g.events == nil {
		return StreamReport{State: StreamOff}
	}
	return g.events.status()
}

// gauges returns the present values of the metrics.
func (g *GenericPLEG) gauges() gauges {
	h := g.healthCheck()
	now := gauges{
		healthy: h.unhealthy() == nil, streamConnected: g.streamStatus().State == StreamConnected,
		lastList: h.lastList, tally: h.tally,
		inspectionsInFlight: len(h.inFlight(methodGetPodStatus)), blockedReaders: g.blockedReaders(),
	}
	now.hung, now.failing = h.counts()
	backlogs := g.updates.Backlogs()
	total, named := subscriberReports(backlogs)
	now.subscribers, now.backlog = len(backlogs), total
	for _, s := range named {
		now.named = append(now.named, namedBacklog{s.Name, s.Backlog, s.behind(h.now)})
	}
	if listing := h.inFlight(methodGetPods); len(listing) > 0 {
		now.relistRunning = max(0, h.now.Sub(listing[0].Since))
	}
	return now
}

// blockedReaders counts the readers that wait on the cache; -1 if it is not a PodCache.
func (g *GenericPLEG) blockedReaders() int {
	if g.podCache == nil {
		return -1
	}
	return g.podCache.BlockedReaders()
}

// reportedCalls returns the calls that the runtime reports, if it is a CallReporter.
func (g *GenericPLEG) reportedCalls() (calls []RuntimeCall) {
	if reporter, ok := g.runtime.(CallReporter); ok {
		g.guarded("CallsInFlight", func() { calls = reporter.CallsInFlight() })
	}
	return calls
}

// described returns how the runtime describes itself, if it is a Describer.
func (g *GenericPLEG) described() (description string) {
	if d, ok := g.runtime.(Describer); ok {
		g.guarded("DescribeRuntime", func() { description = d.DescribeRuntime() })
	}
	return description
}

// guarded runs a method of the runtime that may panic.
func (g *GenericPLEG) guarded(name string, method func()) {
	defer func() {
		if p := recover(); p != nil {
			g.metrics.badData(g.logger.Info, badRuntimePanic, name+": "+calls.PanicText(p))
		}
	}()
	method()
}

// runtimeCall converts a call to its form in a report.
func runtimeCall(info calls.Info) RuntimeCall {
	call := RuntimeCall{Method: info.Method, PodUID: info.PodUID, Since: info.Since}
	if info.Object != nil {
		call.Object = info.Object.String()
	}
	return call
}
