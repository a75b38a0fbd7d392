package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// The defaults make a short run. docs/RUNTIMES.md shows the results of 200 containers.
var (
	shortLives = flag.Int("short.lives", 20, "how many containers TestShortLives runs")
	shortKept  = flag.Int("short.kept", 24, "how many containers TestShortContainers runs")
)

// eventStream is a runtime with an event stream but without exit events.
type eventStream struct {
	pleg.Runtime
	pleg.PodGetter
	pleg.EventSource
}

// exitStream is a runtime with exit events but without an event stream.
type exitStream struct {
	pleg.Runtime
	pleg.PodGetter
	pleg.ExitSource
}

// shortCalls counts a handler's calls for one container. The field code is the exit code in the
// last call.
type shortCalls struct{ created, started, died, ended, removed, code int }

// shortWatcher is a handler with a generator of its own.
type shortWatcher struct {
	name  string
	mu    sync.Mutex
	calls map[string]shortCalls // by container; guarded by mu
}

// watchShort starts a watcher with a generator. The argument variant chooses the runtime's streams.
func (n *node) watchShort(name string, variant func(*cri.Runtime) pleg.Runtime) *shortWatcher {
	n.t.Helper()
	runtime, err := cri.Connect(n.ctx, n.daemon.Endpoint(),
		cri.WithExitsDir(n.daemon.ExitsDir()), cri.WithLogger(testLogger(n.t)))
	n.must(err)
	g := pleg.NewGenericPLEG(variant(runtime), 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(testLogger(n.t)))
	g.Start(n.ctx)
	ctx, stop := context.WithCancel(n.ctx)
	w := &shortWatcher{name: name, calls: map[string]shortCalls{}}
	var handling sync.WaitGroup
	handling.Go(func() { _ = g.Handle(ctx, w.handler()) })
	n.t.Cleanup(func() {
		stop()
		handling.Wait()
		g.Stop()
		runtime.Close()
	})
	n.must(g.WaitForSync(n.ctx))
	n.eventually("the streams of "+name, func() string {
		r := g.HealthReport()
		for _, state := range []pleg.StreamState{r.Stream.State, r.ExitStream.State} {
			if state != pleg.StreamConnected && state != pleg.StreamOff {
				return string(state)
			}
		}
		return ""
	})
	return w
}

func (w *shortWatcher) handler() pleg.Handler {
	count := func(counter func(*shortCalls) *int) func(*pleg.PodLifecycleEvent) {
		return func(e *pleg.PodLifecycleEvent) {
			w.mu.Lock()
			defer w.mu.Unlock()
			c := w.calls[e.Container.ID.ID]
			*counter(&c)++
			c.code, _, _ = e.Exit()
			w.calls[e.Container.ID.ID] = c
		}
	}
	return pleg.Handler{
		OnContainerCreated: count(func(c *shortCalls) *int { return &c.created }),
		OnContainerStarted: count(func(c *shortCalls) *int { return &c.started }),
		OnContainerDied:    count(func(c *shortCalls) *int { return &c.died }),
		OnContainerEnded:   count(func(c *shortCalls) *int { return &c.ended }),
		OnContainerRemoved: count(func(c *shortCalls) *int { return &c.removed }),
	}
}

// summary returns the sums of all calls, and each container whose calls differ from want. If there
// is no such container, complete is true.
func (w *shortWatcher) summary(codes map[string]int, want shortCalls) (text string, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum shortCalls
	right := 0
	var wrong []string
	for id, code := range codes {
		c := w.calls[id]
		sum.created += c.created
		sum.started += c.started
		sum.died += c.died
		sum.ended += c.ended
		sum.removed += c.removed
		if c.code == code {
			right++
		}
		if want.code = code; c != want {
			wrong = append(wrong, fmt.Sprintf("%.12s has %+v instead of %+v", id, c, want))
		}
	}
	return fmt.Sprintf("%s: of %d, created %d, started %d, died %d, ended %d, removed %d, right codes %d %q", w.name,
		len(codes), sum.created, sum.started, sum.died, sum.ended, sum.removed, right, wrong), len(wrong) == 0
}

// runShort runs containers that exit, and returns their exit codes. Each pod runs ten containers;
// four pods run at a time. The i-th container lives for life(i). After the start of each container,
// runShort calls the function then.
func (n *node) runShort(count int, life func(i int) time.Duration, then func(id string) error) map[string]int {
	n.t.Helper()
	const workers, perPod = 4, 10
	var mu sync.Mutex
	codes := map[string]int{}
	var living sync.WaitGroup
	for worker := range workers {
		living.Go(func() {
			var pod *testnode.Pod
			for i := worker; i < count; i += workers {
				var err error
				if i/workers%perPod == 0 {
					if pod, err = n.client.RunPod(n.ctx, "e2e", fmt.Sprint("short", i)); err != nil {
						n.t.Error(err)
						return
					}
				}
				script := []string{fmt.Sprint("exit ", i%200)}
				if life := life(i); life > 0 {
					script = append([]string{fmt.Sprintf("sleep %.3f", life.Seconds())}, script...)
				}
				id, err := n.client.Run(n.ctx, pod, testnode.Container{Name: fmt.Sprint("c", i),
					Command: testnode.Script(script...)})
				if err == nil {
					err = then(id)
				}
				if err != nil {
					n.t.Error(err)
					return
				}
				mu.Lock()
				codes[id] = i % 200
				mu.Unlock()
			}
		})
	}
	living.Wait()
	return codes
}

// called waits until each watcher has counted the calls in want. It fails the test if more calls
// follow.
func (n *node) called(codes map[string]int, want shortCalls, watchers ...*shortWatcher) {
	n.t.Helper()
	for _, w := range watchers {
		n.eventually("all calls", func() string {
			if text, complete := w.summary(codes, want); !complete {
				return text
			}
			return ""
		})
	}
	time.Sleep(3 * time.Second) // a second call would have come by now
	for _, w := range watchers {
		text, complete := w.summary(codes, want)
		if !complete {
			n.t.Error(text)
		}
		n.t.Log(text)
	}
}

// If containers live 20 ms and are removed once they have exited, 200 ms or more after their start, exit
// events report all of them. Without exit events, the test only logs the counts.
func TestShortLives(t *testing.T) {
	n := newBareNode(t)
	both := n.watchShort("with exit events", func(r *cri.Runtime) pleg.Runtime { return r })
	without := n.watchShort("without", func(r *cri.Runtime) pleg.Runtime { return eventStream{r, r, r} })
	life := func(int) time.Duration { return 20 * time.Millisecond }
	codes := n.runShort(*shortLives, life, func(id string) error {
		time.Sleep(200 * time.Millisecond)
		// On a busy machine, the container may still run. The removal would then kill it.
		if s := n.lastStatus(id, time.Now().Add(patience)); s.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("container %.12s still runs", id)
		}
		return n.client.Remove(n.ctx, id)
	})
	want := shortCalls{created: 1, started: 1, died: 1, ended: 1, removed: 1}
	n.called(codes, want, both)
	text, _ := without.summary(codes, want)
	t.Log(text)
}

// If containers live 0 to 300 ms, each is reported once as created, started, died and ended, with
// any choice of streams.
func TestShortContainers(t *testing.T) {
	n := newBareNode(t)
	watchers := []*shortWatcher{
		n.watchShort("both streams", func(r *cri.Runtime) pleg.Runtime { return r }),
		n.watchShort("event stream", func(r *cri.Runtime) pleg.Runtime { return eventStream{r, r, r} }),
		n.watchShort("exit events", func(r *cri.Runtime) pleg.Runtime { return exitStream{r, r, r} }),
		n.watchShort("lists alone", func(r *cri.Runtime) pleg.Runtime { return struct{ pleg.Runtime }{r} }),
	}
	life := func(i int) time.Duration { return time.Duration(300*i / *shortKept) * time.Millisecond }
	codes := n.runShort(*shortKept, life, func(string) error { return nil })
	n.called(codes, shortCalls{created: 1, started: 1, died: 1, ended: 1}, watchers...)
}
