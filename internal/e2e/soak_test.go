package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

var (
	soakLives = flag.Int("soak.lives", 240, "container lives of TestSoak")
	soakFor   = flag.Duration("soak.for", 0, "how long TestSoak makes lives, in two rounds, instead of -soak.lives")
	soakRound = flag.Int("soak.round", 1000,
		"container lives between two reckonings of TestSoak; at least two rounds are made")
	soakWorkers = flag.Int("soak.workers", 12, "containers that live at once in TestSoak")
)

// Containers start and end while faults are injected into the runtime: it is frozen, killed,
// restarted or, where possible, its socket is replaced. Subscribers stall, come and go. The test
// compares all reports with its own book:
//
//   - No event is lost, invented or out of order.
//   - A reader of the cache never sees a status that is older than the reader asked for.
//   - Goroutines, file descriptors and memory do not grow.
//
// The soak runs in rounds. After each round, the faults stop and the results are checked. The
// footprint after the first round is the limit for the others.
func TestSoak(t *testing.T) {
	n := newBareNode(t)
	ctx := n.ctx
	s := newSoak(t, n)
	s.must(s.churn.settle(ctx, 6))
	rounds := max(2, *soakLives / *soakRound)
	if *soakFor > 0 {
		rounds = 2
	}
	began := time.Now()
	var first, last footprint
	defer func() {
		t.Logf("lives by kind: %v; faults: %v; calls of the test that failed under fire: %d; the generator's own account:%s",
			s.churn.passed, s.fire.done, s.churn.hits, s.generators[0].meters.story(t))
		for _, g := range s.generators {
			g.meters.checkBadData(t)
		}
		if s.churn.lost > 0 {
			t.Logf("%s lost the exits of %d containers: it shows them as unknown", n.daemon.Runtime().Name,
				s.churn.lost)
			t.Attr(attrLost, strconv.Itoa(s.churn.lost))
		}
		if s.churn.givenUp > 0 {
			t.Logf("%s gave up pods that lived: %d containers could not be made in them", n.daemon.Runtime().Name,
				s.churn.givenUp)
		}
	}()
	for round := range rounds {
		lives := *soakLives / rounds
		if round == 0 {
			lives += *soakLives % rounds
		}
		if *soakFor > 0 {
			lives = math.MaxInt32
			time.AfterFunc(*soakFor/2, func() { s.churn.budget.Store(0) })
		}
		s.round(ctx, lives)
		s.reckon(ctx)
		last = s.footprint(ctx, first)
		if round == 0 {
			first = last
		}
		t.Logf("round %d of %d, after %v: %v", round+1, rounds, time.Since(began).Round(time.Second), last)
		if t.Failed() {
			break
		}
	}
	if wrong := last.grownFrom(first); wrong != "" {
		t.Errorf("growth: %s: %v after the first round, %v after the last", wrong, first, last)
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Error(err)
		}
		t.Log(stacks.String())
	}
}

// soak is a node with faults, its workload and its watchers.
type soak struct {
	*testing.T
	node       *node
	generators []generator // one without exit events, then one with exit events
	book       *book
	churn      *churn
	audience   *audience
	fire       *fire
}

// generator is a generator with its cache and its metrics.
type generator struct {
	*pleg.GenericPLEG
	cache  *pleg.PodCache
	meters meters
}

func newSoak(t *testing.T, n *node) *soak {
	s := &soak{T: t, node: n, fire: newFire(n.daemon)}
	s.book = newBook(n.daemon.Runtime(), s.fire.crashes.Load)
	s.churn = newChurn(n.client, s.fire, s.book)
	s.generators = []generator{s.generate(cri.WithoutExitEvents()), s.generate(cri.WithExitsDir(n.daemon.ExitsDir()))}
	s.audience = assemble(s.generators[0], s.generators[1], s.book, s.churn.uids)
	t.Cleanup(s.audience.dismiss)
	s.churn.audience = s.audience
	return s
}

// generate starts a generator, with options for its connection.
func (s *soak) generate(connection ...cri.Option) generator {
	runtime, err := cri.Connect(s.node.ctx, s.node.daemon.Endpoint(), connection...)
	s.must(err)
	s.Cleanup(func() { runtime.Close() })
	g := generator{cache: pleg.NewCache(), meters: newMeters()}
	g.GenericPLEG = pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod, g.cache,
		clock.RealClock{}, pleg.WithLogger(testLogger(s.T)), pleg.WithRegisterer(g.meters))
	g.Start(s.Context())
	s.Cleanup(g.Stop)
	return g
}

func (s *soak) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// round runs containers and pods while faults are injected. The argument lives is how many it runs.
func (s *soak) round(ctx context.Context, lives int) {
	s.Helper()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.audience.setCalm(false)
	s.churn.budget.Store(int64(lives))
	var workers, fire sync.WaitGroup
	over := make(chan struct{})
	fire.Go(func() {
		if err := s.fire.burn(ctx, over); err != nil {
			cancel(err)
		}
	})
	for range *soakWorkers {
		workers.Go(func() {
			if err := s.churn.work(ctx); err != nil {
				cancel(err) // the first error ends the round; context.Cause returns it
			}
		})
	}
	workers.Wait()
	close(over)
	fire.Wait()
	if err := context.Cause(ctx); err != nil {
		s.Error(err)
	}
}

// reckon waits until the state after each subscriber's events equals the runtime's list. Then it
// compares the subscribers' events with the book.
func (s *soak) reckon(ctx context.Context) {
	s.Helper()
	s.audience.setCalm(true)
	deadline := time.Now().Add(patience)
	for _, l := range s.audience.lasting {
		for {
			difference, uncoded := s.difference(ctx, l), l.uncoded()
			if difference == "" && uncoded == "" {
				break
			}
			if time.Now().After(deadline) {
				if difference != "" {
					s.Errorf("%s: its replayed events do not match the runtime's list: %s", l.name, difference)
				}
				if uncoded != "" {
					s.Errorf("%s: %s", l.name, uncoded)
				}
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	wrong := s.audience.wrong()
	for _, l := range s.audience.lasting {
		wrong = append(wrong, l.judge(s.book)...)
		l.forget()
	}
	s.book.close()
	for i, w := range wrong {
		if i == 20 {
			s.Errorf("and %d more", len(wrong)-i)
			break
		}
		s.Error(w)
	}
	for _, g := range s.generators {
		if ok, err := g.Healthy(); !ok {
			s.Error("in peace again, Healthy says:", err)
		}
		s.awaitStreams(ctx, g)
	}
}

// awaitStreams waits until no stream of a generator is broken or connecting. Otherwise the next
// round would count the new connection as growth.
func (s *soak) awaitStreams(ctx context.Context, g generator) {
	s.Helper()
	deadline := time.Now().Add(2 * time.Minute) // the longest back-off is one minute
	for {
		report := g.HealthReport()
		waits := func(stream pleg.StreamReport) bool {
			return stream.State == pleg.StreamBroken || stream.State == pleg.StreamConnecting
		}
		if !waits(report.Stream) && !waits(report.ExitStream) {
			return
		}
		if time.Now().After(deadline) {
			s.Errorf("in peace again, streams are not connected: %+v, %+v", report.Stream, report.ExitStream)
			return
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// wrong returns the errors in the events of guests, and forgets them.
func (a *audience) wrong() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	wrong := a.guest
	a.guest = nil
	return wrong
}

// difference compares the state after a subscriber's events with the runtime's list. It returns the
// first difference, or "".
func (s *soak) difference(ctx context.Context, l *listener) string {
	listed := make(map[string]string)
	containers, err := s.node.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err.Error()
	}
	sandboxes, err := s.node.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err.Error()
	}
	for _, c := range containers.Containers {
		switch c.State {
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			listed[c.Id] = "running"
		case runtimeapi.ContainerState_CONTAINER_EXITED:
			listed[c.Id] = "exited"
		case runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		}
	}
	for _, p := range sandboxes.Items {
		listed[p.Id] = "exited"
		if p.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			listed[p.Id] = "running"
		}
	}
	present := l.present()
	if maps.Equal(present, listed) {
		return ""
	}
	for _, id := range slices.Sorted(maps.Keys(listed)) {
		if present[id] != listed[id] {
			return fmt.Sprintf("%.12s is %s, by the events %q", id, listed[id], present[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(present)) {
		if listed[id] == "" {
			return fmt.Sprintf("%.12s is not listed, by the events %q", id, present[id])
		}
	}
	return ""
}

// footprint counts the resources of this process.
type footprint struct {
	goroutines, descriptors int
	heap                    uint64
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %.1f MiB of heap", f.goroutines, f.descriptors,
		float64(f.heap)/(1<<20))
}

// These are the limits of grownFrom. They allow for a connection that is being replaced, and for
// memory that maps keep. Most of that memory is for removed containers: each of the two generators
// remembers at most 8192 of them, in less than 1 MiB. Two kinds of leaks would exceed the limits:
// one goroutine for every ten lives of the default soak, or 400 bytes for each of 10,000 lives.
const (
	moreGoroutines  = 3
	moreDescriptors = 2
	moreHeap        = 3 << 20
)

func (f footprint) grownFrom(first footprint) string {
	switch {
	case f.goroutines > first.goroutines+moreGoroutines:
		return "goroutines"
	case f.descriptors > first.descriptors+moreDescriptors:
		return "descriptors"
	case f.heap > first.heap+moreHeap:
		return "memory"
	}
	return ""
}

// footprint returns the minimum of several measurements, because guests come and go. It measures
// until there is no growth, for at most 30 seconds.
func (s *soak) footprint(ctx context.Context, first footprint) footprint {
	s.Helper()
	var least footprint
	for deadline, n := time.Now().Add(30*time.Second), 0; ; n++ {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fds, err := os.ReadDir("/proc/self/fd")
		s.must(err)
		now := footprint{goroutines: runtime.NumGoroutine(), descriptors: len(fds), heap: m.HeapAlloc}
		if n == 0 {
			least = now
		}
		least.goroutines = min(least.goroutines, now.goroutines)
		least.descriptors = min(least.descriptors, now.descriptors)
		least.heap = min(least.heap, now.heap)
		if n >= 20 && (first == (footprint{}) || least.grownFrom(first) == "") || time.Now().After(deadline) {
			return least
		}
		pause(ctx, 100*time.Millisecond)
	}
}
