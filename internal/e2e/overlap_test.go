package e2e_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// A runtime answers calls that are in flight together in any order: a call that
// was made later may have read the runtime's state earlier. The soak met this on
// a runtime that thaws; here it is made on purpose, with a runtime whose answers
// are handed over one by one. What has died must not start again.
func TestOverlappingListingsInventNothing(t *testing.T) {
	const uid = types.UID("overlap")
	for _, c := range []struct {
		name string
		// truth is what the call that was made earlier has read, after the call
		// that was made later read that the container runs.
		truth *pleg.Pod
		told  int // events that this makes, with the first Started
	}{
		{"exited", overlapPod(uid, pleg.ContainerStateExited), 2},
		{"gone", nil, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			stale := overlapPod(uid, pleg.ContainerStateRunning)
			rt := &scripted{asked: make(chan question)}
			cache := pleg.NewCache()
			g := pleg.NewGenericPLEG(rt, 100, time.Hour, cache, clock.RealClock{}, pleg.WithLogger(testLogger(t)))
			events := newJournal(cache)
			ctx, stop := context.WithCancel(context.Background())
			var joined sync.WaitGroup
			joined.Go(func() { events.read(ctx, g.Watch()) })
			g.Start(ctx)
			defer func() {
				g.Stop()
				stop()
				joined.Wait()
				for _, p := range events.problems() {
					t.Error(p)
				}
			}()

			rt.next(t) <- stale
			awaitEvents(t, events, 1)

			joined.Go(func() { _ = g.Relist(t.Context()) })
			list := rt.next(t)
			g.RequestRelist(uid)
			look := rt.next(t)
			list <- c.truth
			awaitEvents(t, events, c.told)
			look <- stale
			rt.answerAll(events, c.truth)
			joined.Go(func() { _ = g.Relist(t.Context()) })
			rt.answerAll(events, c.truth)
			for _, e := range events.of("c")[c.told:] {
				t.Errorf("invented: %s, from an answer that was read before the death was told", e.Type)
			}
		})
	}
}

func awaitEvents(t *testing.T, j *journal, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); j.len() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d events, want %d:\n%s", j.len(), n, j)
		}
	}
}

func overlapPod(uid types.UID, s pleg.State) *pleg.Pod {
	return &pleg.Pod{ID: uid, Name: "overlap", Namespace: "e2e", Containers: []*pleg.Container{
		{ID: pleg.ContainerID{Type: "scripted", ID: "c"}, Name: "c", State: s},
	}}
}

// scripted is a runtime whose listings are answered by hand.
type scripted struct {
	asked chan question
}

// question is a listing that waits for its answer: the one pod there is, or nil.
type question chan *pleg.Pod

// next returns the next question.
func (s *scripted) next(t *testing.T) question {
	t.Helper()
	select {
	case q := <-s.asked:
		return q
	case <-time.After(patience):
		t.Fatal("no listing was asked for")
		return nil
	}
}

// answerAll answers every question alike until there are none and no events have
// come for a while.
func (s *scripted) answerAll(j *journal, pod *pleg.Pod) {
	const quiet = 300 * time.Millisecond
	for n, since := j.len(), time.Now(); time.Since(since) < quiet; {
		select {
		case q := <-s.asked:
			q <- pod
			since = time.Now()
		case <-time.After(5 * time.Millisecond):
		}
		if j.len() != n {
			n, since = j.len(), time.Now()
		}
	}
}

func (s *scripted) ask(ctx context.Context) (*pleg.Pod, error) {
	q := make(question, 1)
	select {
	case s.asked <- q:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case pod := <-q:
		return pod, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *scripted) GetPods(ctx context.Context, _ bool) ([]*pleg.Pod, error) {
	pod, err := s.ask(ctx)
	if pod == nil {
		return nil, err
	}
	return []*pleg.Pod{pod}, err
}

func (s *scripted) GetPod(ctx context.Context, _ types.UID) (*pleg.Pod, error) {
	pod, err := s.ask(ctx)
	if pod == nil && err == nil {
		return nil, pleg.ErrPodNotFound
	}
	return pod, err
}

func (s *scripted) GetPodStatus(_ context.Context, p *pleg.Pod) (*pleg.PodStatus, error) {
	return &pleg.PodStatus{ID: p.ID, Name: p.Name, Namespace: p.Namespace}, nil
}
