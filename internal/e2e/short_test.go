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
var shortLives = flag.Int("short.lives", 20, "how many containers TestShortLives runs")

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
