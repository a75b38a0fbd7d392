package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// By default a short run. docs/RUNTIMES.md has 200.
var (
	shortLives = flag.Int("short.lives", 20, "how many containers TestShortLives runs")
	shortKept  = flag.Int("short.kept", 24, "how many containers TestShortContainers runs")
)

// shortSeen counts what a handler was called with.
type shortSeen struct {
	mu                              sync.Mutex
	created, started, died, removed map[string]int // by container; guarded by mu
	codes                           map[string]int // with which they died; guarded by mu
}

func newShortSeen() *shortSeen {
	return &shortSeen{created: map[string]int{}, started: map[string]int{}, died: map[string]int{},
		removed: map[string]int{}, codes: map[string]int{}}
}

func (s *shortSeen) handler() pleg.Handler {
	count := func(in map[string]int) func(*pleg.PodLifecycleEvent) {
		return func(e *pleg.PodLifecycleEvent) {
			s.mu.Lock()
			defer s.mu.Unlock()
			in[e.Container.ID.ID]++
			if e.Type == pleg.ContainerDied && e.Status != nil {
				s.codes[e.Container.ID.ID] = e.Status.ExitCode
			}
		}
	}
	return pleg.Handler{OnContainerCreated: count(s.created), OnContainerStarted: count(s.started),
		OnContainerDied: count(s.died), OnContainerRemoved: count(s.removed)}
}

// summary says how many containers had each event once, and their code.
func (s *shortSeen) summary(codes map[string]int) (text string, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	once := func(events map[string]int) (n int) {
		for id := range codes {
			if events[id] == 1 {
				n++
			}
		}
		return n
	}
	right := 0
	for id, code := range codes {
		if s.died[id] == 1 && s.codes[id] == code {
			right++
		}
	}
	created, started, died, removed := once(s.created), once(s.started), once(s.died), once(s.removed)
	return fmt.Sprintf("of %d, created %d, started %d, died %d with the right code %d, removed %d",
		len(codes), created, started, died, right, removed), min(created, right, removed) == len(codes)
}

// Containers that live 20 ms, and are removed 200 ms after they were started, are all reported.
func TestShortLives(t *testing.T) {
	n := newBareNode(t)
	watch := func(exitEvents bool) *shortSeen {
		option := cri.WithExitsDir(n.daemon.ExitsDir())
		if !exitEvents {
			option = cri.WithoutExitEvents()
		}
		runtime, err := cri.Connect(n.ctx, n.daemon.Endpoint(), option, cri.WithLogger(testLogger(t)))
		n.must(err)
		g := pleg.NewGenericPLEG(runtime, 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(testLogger(t)))
		g.Start(n.ctx)
		ctx, stop := context.WithCancel(n.ctx)
		seen := newShortSeen()
		var handling sync.WaitGroup
		handling.Go(func() { _ = g.Handle(ctx, seen.handler()) })
		t.Cleanup(func() {
			stop()
			handling.Wait()
			g.Stop()
			runtime.Close()
		})
		n.must(g.WaitForSync(n.ctx))
		if exitEvents {
			n.eventually("the streams", func() string {
				if r := g.HealthReport(); r.ExitStream.State != pleg.StreamConnected {
					return string(r.ExitStream.State)
				}
				return ""
			})
		}
		return seen
	}
	seen, without := watch(true), watch(false)
	const workers = 4
	var mu sync.Mutex
	codes := map[string]int{}
	var living sync.WaitGroup
	for worker := range workers {
		pod := n.runPod(fmt.Sprint("short", worker))
		living.Go(func() {
			for i := worker; i < *shortLives; i += workers {
				id, err := n.client.Run(n.ctx, pod, testnode.Container{Name: fmt.Sprint("c", i),
					Command: testnode.Script("sleep 0.02", fmt.Sprint("exit ", i%200))})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(200 * time.Millisecond)
				err = n.client.Remove(n.ctx, id)
				// On a busy machine containerd takes the container for running yet, and refuses.
				for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
					time.Sleep(10 * time.Millisecond)
					err = n.client.Remove(n.ctx, id)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				codes[id] = i % 200
				mu.Unlock()
			}
		})
	}
	living.Wait()
	n.eventually("all events", func() string {
		if text, complete := seen.summary(codes); !complete {
			return text
		}
		return ""
	})
	time.Sleep(3 * time.Second) // for what is reported twice
	text, complete := seen.summary(codes)
	if !complete {
		t.Error(text)
	}
	t.Log("with exit events:", text)
	text, _ = without.summary(codes)
	t.Log("without:", text)
}

// eventStream is a runtime without exit events.
type eventStream struct {
	pleg.Runtime
	pleg.PodGetter
	pleg.EventSource
}

// exitStream is a runtime without an event stream.
type exitStream struct {
	pleg.Runtime
	pleg.PodGetter
	pleg.ExitSource
}

// shortCalls counts the calls of a handler for one container, and has the code of its last event.
type shortCalls struct{ started, died, ended, code int }

// shortWatcher is a handler of its own generator.
type shortWatcher struct {
	name  string
	mu    sync.Mutex
	calls map[string]shortCalls // by container; guarded by mu
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
		OnContainerStarted: count(func(c *shortCalls) *int { return &c.started }),
		OnContainerDied:    count(func(c *shortCalls) *int { return &c.died }),
		OnContainerEnded:   count(func(c *shortCalls) *int { return &c.ended }),
	}
}

// summary returns how many containers had each call, and what each other container had.
func (w *shortWatcher) summary(codes map[string]int) (text string, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var started, died, ended, right int
	var wrong []string
	for id, code := range codes {
		c := w.calls[id]
		started += c.started
		died += c.died
		ended += c.ended
		if c.code == code {
			right++
		}
		if want := (shortCalls{1, 1, 1, code}); c != want {
			wrong = append(wrong, fmt.Sprintf("%.12s has %+v instead of %+v", id, c, want))
		}
	}
	return fmt.Sprintf("%s: of %d, started %d, died %d, ended %d, right codes %d %q",
		w.name, len(codes), started, died, ended, right, wrong), len(wrong) == 0
}

// Containers that live 0 to 300 ms start, die and end once each, whatever streams a generator has.
func TestShortContainers(t *testing.T) {
	n := newBareNode(t)
	watch := func(name string, variant func(*cri.Runtime) pleg.Runtime) *shortWatcher {
		runtime, err := cri.Connect(n.ctx, n.daemon.Endpoint(),
			cri.WithExitsDir(n.daemon.ExitsDir()), cri.WithLogger(testLogger(t)))
		n.must(err)
		g := pleg.NewGenericPLEG(variant(runtime), 0, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(testLogger(t)))
		g.Start(n.ctx)
		ctx, stop := context.WithCancel(n.ctx)
		w := &shortWatcher{name: name, calls: map[string]shortCalls{}}
		var handling sync.WaitGroup
		handling.Go(func() { _ = g.Handle(ctx, w.handler()) })
		t.Cleanup(func() {
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
	watchers := []*shortWatcher{
		watch("both streams", func(r *cri.Runtime) pleg.Runtime { return r }),
		watch("event stream", func(r *cri.Runtime) pleg.Runtime { return eventStream{r, r, r} }),
		watch("exit events", func(r *cri.Runtime) pleg.Runtime { return exitStream{r, r, r} }),
		watch("lists alone", func(r *cri.Runtime) pleg.Runtime { return struct{ pleg.Runtime }{r} }),
	}
	const workers, perPod = 4, 10
	var mu sync.Mutex
	codes := map[string]int{}
	var living sync.WaitGroup
	for worker := range workers {
		living.Go(func() {
			var pod *testnode.Pod
			for i := worker; i < *shortKept; i += workers {
				var err error
				if i/workers%perPod == 0 {
					if pod, err = n.client.RunPod(n.ctx, "e2e", fmt.Sprint("short", i)); err != nil {
						t.Error(err)
						return
					}
				}
				lines := []string{fmt.Sprint("exit ", i%200)}
				if life := 300 * i / *shortKept; life > 0 {
					lines = append([]string{fmt.Sprintf("sleep 0.%03d", life)}, lines...)
				}
				id, err := n.client.Run(n.ctx, pod, testnode.Container{Name: fmt.Sprint("c", i),
					Command: testnode.Script(lines...)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				codes[id] = i % 200
				mu.Unlock()
			}
		})
	}
	living.Wait()
	for _, w := range watchers {
		n.eventually("all calls", func() string {
			if text, complete := w.summary(codes); !complete {
				return text
			}
			return ""
		})
	}
	time.Sleep(3 * time.Second) // for what is called twice
	for _, w := range watchers {
		text, complete := w.summary(codes)
		if !complete {
			t.Error(text)
		}
		t.Log(text)
	}
}
