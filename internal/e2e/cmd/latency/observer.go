package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// observer is a generator with its own connection, and a subscriber that records the time of each
// death event.
type observer struct {
	runtime *cri.Runtime
	cache   *pleg.PodCache
	pleg    *pleg.GenericPLEG
	stop    context.CancelFunc
	joined  sync.WaitGroup

	mu   sync.Mutex
	died map[string]time.Time
	news chan struct{} // closed and replaced at every death
}

// observe starts a generator. The runtime's hints reach the generator through the function pass.
func observe(
	ctx context.Context, endpoint string, pass func(hint func()), runtimeOpts []cri.Option, opts ...pleg.Option,
) (*observer, error) {
	runtime, err := cri.Connect(ctx, endpoint, runtimeOpts...)
	if err != nil {
		return nil, err
	}
	o := &observer{
		runtime: runtime,
		cache:   pleg.NewCache(),
		died:    make(map[string]time.Time),
		news:    make(chan struct{}),
	}
	o.pleg = pleg.NewGenericPLEG(hintPasser{runtime, pass}, pleg.DefaultChannelCapacity, *period, o.cache,
		clock.RealClock{}, opts...)
	o.pleg.Start(ctx)
	subscribed, stop := context.WithCancel(context.Background())
	o.stop = stop
	events := o.pleg.Subscribe(subscribed)
	o.joined.Go(func() {
		for e := range events {
			if e.Type == pleg.ContainerDied {
				o.note(e, time.Now())
			}
		}
	})
	return o, nil
}

func (o *observer) close() {
	o.stop()
	o.joined.Wait()
	o.pleg.Stop()
	o.runtime.Close()
}

func (o *observer) note(e *pleg.PodLifecycleEvent, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, _ := e.Data.(string)
	o.died[id] = at
	close(o.news)
	o.news = make(chan struct{})
}

func (o *observer) awaitDeath(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		o.mu.Lock()
		_, ok := o.died[id]
		news := o.news
		o.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("the death of container %s was not reported: %w", id, ctx.Err())
		}
	}
}

// awaitStream waits until a stream is connected. The last argument selects the stream in a health
// report.
func (o *observer) awaitStream(ctx context.Context, of func(pleg.HealthReport) pleg.StreamReport) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if of(o.pleg.HealthReport()).State == pleg.StreamConnected {
			return nil
		}
		if err := measure.Wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("no stream: %+v", of(o.pleg.HealthReport()))
}

func eventStream(r pleg.HealthReport) pleg.StreamReport { return r.Stream }

func exitStream(r pleg.HealthReport) pleg.StreamReport { return r.ExitStream }

// diedAt returns the time when the subscriber was sent the death.
func (o *observer) diedAt(m mortal) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.died[m.id]
}

// finishedAt returns the time of a container's death according to the runtime.
func (o *observer) finishedAt(m mortal) (time.Time, error) {
	s, err := o.cache.Get(m.uid)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading pod %s: %w", m.uid, err)
	}
	for _, c := range s.ContainerStatuses {
		if c.ID.ID == m.id {
			return c.FinishedAt, nil
		}
	}
	return time.Time{}, fmt.Errorf("container %s is not in the cache", m.id)
}
