package pleg

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/kubepleg/pleg/internal/core/calls"
	"github.com/kubepleg/pleg/internal/core/schedule"
)

// run runs the loop until ctx ends or done is closed. It first waits until no other goroutine runs
// the loop.
func (g *GenericPLEG) run(ctx context.Context, done <-chan struct{}) {
	select {
	case g.token <- struct{}{}:
		defer func() { <-g.token }()
	case <-ctx.Done():
		return
	case <-done:
		return
	}
	for ctx.Err() == nil && !isClosed(done) {
		timeout := g.step()
		select {
		case <-ctx.Done():
		case <-done:
		case <-g.inbox.Wake():
			runtime.Gosched()
		case <-timeout:
		}
	}
}

// step takes one step of the reconciler and carries out its outputs. The returned channel fires
// when the next step is due. It is nil if only an input can make a step due.
func (g *GenericPLEG) step() <-chan time.Time {
	g.mu.Lock()
	in := g.inbox.Take()
	out := g.reconciler.step(g.clock.Now(), &in)
	if g.reconciler.synced && !isClosed(g.synced) {
		close(g.synced)
		g.updates.Publish(&update{uid: syncedUID})
	}
	g.mu.Unlock()
	for _, c := range out.cancel {
		g.calls.Cancel(c.Call, c.cause)
	}
	for _, c := range out.begin {
		g.begin(c)
	}
	for _, log := range out.log {
		log(g.logger)
	}
	for _, caller := range out.relisted {
		close(caller.done)
	}
	return g.sleep(out.wake)
}

// begin makes a call and puts its result into the inbox.
func (g *GenericPLEG) begin(c beginCall) {
	info := calls.Info{Method: methods[c.Kind], PodUID: c.UID, Since: c.Began}
	if c.pod != nil {
		info.Object = podName(c.pod)
	}
	res := &result{call: c.Call}
	g.calls.Go(c.Call, info, func(ctx context.Context) (err error) {
		switch c.Kind {
		case schedule.ListAll:
			res.pods, err = g.runtime.GetPods(ctx, true)
		case schedule.ListPod:
			res.pod, err = g.getter.GetPod(ctx, c.UID)
		case schedule.Inspect:
			res.status, err = g.runtime.GetPodStatus(ctx, c.pod)
		}
		if failed := CallError(nil); errors.As(err, &failed) {
			res.failed = failed.Call()
		}
		return err
	}, func(err error, stopped bool) {
		res.err, res.stopped = err, stopped
		g.inbox.Put(func(in *inputs) { in.results = append(in.results, res) })
	})
}

// sleep returns a channel that fires at the time wake; nil if wake is zero. It reads the clock
// again after setting the timer, because a fake clock may have been stepped in between.
func (g *GenericPLEG) sleep(wake time.Time) <-chan time.Time {
	if g.timer != nil {
		g.timer.Stop()
	}
	if wake.IsZero() {
		return nil
	}
	g.timer = g.clock.NewTimer(wake.Sub(g.clock.Now()))
	if g.clock.Now().Before(wake) {
		return g.timer.C()
	}
	passed := make(chan time.Time)
	close(passed)
	return passed
}
