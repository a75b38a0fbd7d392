package cri_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// follower reads a subscription, and keeps the last event of each container.
type follower struct {
	mu       sync.Mutex
	last     map[string]pleg.PodLifeCycleEventType
	problems []string
	hints    int // number of events with pleg.CauseHint
}

func (f *follower) take(e *pleg.PodLifecycleEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Cause == pleg.CauseHint {
		f.hints++
	}
	if e.Type == pleg.PodSync {
		return
	}
	id := e.Data.(string)
	order := map[pleg.PodLifeCycleEventType]int{"": 0, pleg.ContainerStarted: 1, pleg.ContainerDied: 2,
		pleg.ContainerRemoved: 3}
	if order[e.Type] <= order[f.last[id]] {
		f.problems = append(f.problems, fmt.Sprintf("%s of %s after %s", e.Type, id, f.last[id]))
	}
	f.last[id] = e.Type
}

func (f *follower) hinted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hints
}

// differs describes how the events differ from a list. It returns "" if they agree.
func (f *follower) differs(pods []*pleg.Pod) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.problems) > 0 {
		return f.problems[0]
	}
	present := make(map[string]bool)
	for _, p := range pods {
		for _, c := range slices.Concat(p.Containers, p.Sandboxes) {
			present[c.ID.ID] = true
			if c.State == pleg.ContainerStateRunning && f.last[c.ID.ID] != pleg.ContainerStarted ||
				c.State == pleg.ContainerStateExited && f.last[c.ID.ID] != pleg.ContainerDied {
				return fmt.Sprintf("%s is %s; last event %q", c.ID.ID, c.State, f.last[c.ID.ID])
			}
		}
	}
	for id, last := range f.last {
		if !present[id] && last != pleg.ContainerRemoved {
			return fmt.Sprintf("%s is gone; last event %s", id, last)
		}
	}
	return ""
}

// watched is a generator on a CRI server, with two subscribers: the first reads its events, and the
// second stalls.
type watched struct {
	t       *testing.T
	server  *criserver.Server
	g       *pleg.GenericPLEG
	cache   *pleg.PodCache
	reading *follower
	stalled <-chan *pleg.PodLifecycleEvent
	runtime pleg.Runtime
}

func watchServer(t *testing.T, opts ...criserver.Option) *watched {
	t.Helper()
	s, r := serverAndRuntime(t, opts...)
	w := &watched{t: t, server: s, cache: pleg.NewCache(), runtime: r,
		reading: &follower{last: make(map[string]pleg.PodLifeCycleEventType)}}
	w.g = pleg.NewGenericPLEG(r, 0, 200*time.Millisecond, w.cache, clock.RealClock{},
		pleg.WithLogger(logr.Discard()))
	ctx, cancel := context.WithCancel(context.Background())
	events := w.g.Subscribe(ctx, pleg.WithCapacity(10))
	w.stalled = w.g.Subscribe(ctx, pleg.WithCapacity(1))
	var joined sync.WaitGroup
	joined.Go(func() {
		for e := range events {
			w.reading.take(e)
		}
	})
	w.g.Start(ctx)
	t.Cleanup(func() {
		w.g.Stop()
		cancel()
		joined.Wait()
	})
	return w
}

// settles waits until both subscribers and the cache agree with a new list.
func (w *watched) settles() {
	w.t.Helper()
	late := &follower{last: make(map[string]pleg.PodLifeCycleEventType)}
	difference := "nothing was compared"
	for range 3000 {
		for drained := false; !drained; {
			select {
			case e := <-w.stalled:
				late.take(e)
			default:
				drained = true
			}
		}
		pods, err := w.runtime.GetPods(w.t.Context(), true)
		if err != nil {
			difference = err.Error()
		} else if difference = w.reading.differs(pods); difference == "" {
			if difference = late.differs(pods); difference == "" {
				difference = w.cacheDiffers(pods)
			}
		}
		if difference == "" {
			return
		}
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
	w.t.Fatalf("after 30 s still: %s", difference)
}

func (w *watched) cacheDiffers(pods []*pleg.Pod) string {
	if got := len(w.cache.GetAll()); got != len(pods) {
		return fmt.Sprintf("%d pods in the cache, %d listed", got, len(pods))
	}
	for _, p := range pods {
		s, err := w.cache.Get(p.ID)
		if err != nil || len(s.ContainerStatuses) != len(p.Containers) {
			return fmt.Sprintf("%s: %d statuses of %d containers, %v", p.ID, len(s.ContainerStatuses),
				len(p.Containers), err)
		}
	}
	return ""
}

// Rule 16: 1000 containers start and die at a high rate, on containerd 2. If a reader's buffer of
// 100 events is full, an operation of containerd 2 waits for the reader. No operation waits for the
// generator. In the end, the events agree with a new list. This holds even if a subscriber stalls,
// readers of the cache block, and the runtime's lists are stuck.
func TestRule16Storm(t *testing.T) {
	for _, hang := range []bool{false, true} {
		t.Run(fmt.Sprintf("lists hang=%v", hang), func(t *testing.T) {
			w := watchServer(t, serverconfig.With[criserver.Option](serverconfig.Config{EventBuffer: 100}))
			ctx, cancel := context.WithCancel(context.Background())
			var joined sync.WaitGroup
			for range 50 {
				joined.Go(func() {
					_, _, _ = w.cache.LookupNewerThan(ctx, "nobody", time.Now().Add(time.Hour))
				})
			}
			heal := func() {}
			if hang {
				w.awaitStream()
				var heals []func()
				for _, method := range []string{"ListPodSandbox", "ListContainers",
					"StreamPodSandboxes", "StreamContainers"} {
					heals = append(heals, w.server.Inject(criserver.Fault{Method: method,
						Block: true}))
				}
				heal = func() {
					for _, h := range heals {
						h()
					}
				}
			}
			w.storm(20, 50)
			// An operation waits while its event is put into a buffer that has room. That takes
			// microseconds, or more on a busy machine. If the reader stalled while the runtime's
			// lists are stuck, the operation would wait until the end of the storm.
			if got := serverconfig.Of(w.server).EventStats().LongestEnqueue; got > 10*time.Second {
				t.Errorf("the runtime waited %v for its reader", got)
			} else {
				t.Logf("the runtime waited %v at the longest", got)
			}
			heal()
			cancel()
			joined.Wait()
			w.settles()
		})
	}
}

// awaitStream waits until the event stream is connected.
func (w *watched) awaitStream() {
	w.t.Helper()
	for range 3000 {
		if w.g.HealthReport().Stream.State == pleg.StreamConnected {
			return
		}
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
	w.t.Fatal("no stream")
}

// storm runs pods whose containers start and die as fast as the server can. It does not remove the
// sandbox of every third pod.
func (w *watched) storm(pods, containers int) {
	w.t.Helper()
	var joined sync.WaitGroup
	for p := range pods {
		joined.Go(func() {
			sandbox := w.server.RunPod(criserver.PodConfig{UID: types.UID(fmt.Sprintf("pod-%d", p)),
				Name: fmt.Sprint(p), Namespace: "storm"})
			for c := range containers {
				id, err := w.server.RunContainer(sandbox, criserver.ContainerConfig{Name: fmt.Sprint(c)})
				if err == nil {
					err = w.server.ExitContainer(id, c%3, "Error")
				}
				if err == nil && c%2 == 0 {
					err = w.server.RemoveContainer(id)
				}
				if err != nil {
					w.t.Error(err)
				}
			}
			if p%3 != 0 {
				if err := errors.Join(w.server.StopPodSandbox(sandbox),
					w.server.RemovePodSandbox(sandbox)); err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	joined.Wait()
}

// Rule 17: the stream breaks repeatedly in every way, during churn and with every model of a
// runtime. Events are repeated, reordered and, in one case, sent without a sandbox. In the end,
// both subscribers and the cache agree with a new list.
func TestRule17BrokenUnderChurn(t *testing.T) {
	for name, opts := range map[string][]criserver.Option{
		"containerd 2":    nil,
		"without sandbox": {serverconfig.With[criserver.Option](serverconfig.Config{BareEvents: true})},
		"containerd 1.6":  {criserver.WithModel(criserver.Containerd16)},
		"containerd 1.7":  {criserver.WithModel(criserver.Containerd17)},
		"CRI-O":           {criserver.WithModel(criserver.CRIO)},
		"CRI-O as it is":  {criserver.WithModel(criserver.CRIOWithoutEvents)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watchServer(t, opts...)
			serverconfig.Of(w.server).RepeatEvents(2)
			serverconfig.Of(w.server).ShuffleEvents(3)
			for round := range 20 {
				w.storm(3, 4)
				switch round % 4 {
				case 0:
					w.server.BreakEventStreams(status.Error(codes.Unavailable, "reset"))
				case 1:
					w.server.BreakEventStreams(nil)
				case 2:
					w.server.CutConnections()
				case 3:
					w.server.Down()
					if err := w.server.Up(); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.settles()
		})
	}
}
