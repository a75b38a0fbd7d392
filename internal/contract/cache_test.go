package contract_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/randtest"
	"github.com/kubepleg/pleg/plegtest"
)

func status(uid types.UID, name string) *pleg.PodStatus {
	return &pleg.PodStatus{ID: uid, Name: name}
}

// Rule 5: what an older listing led to never replaces what a newer one did.
func TestRule5OlderNeverReplacesNewer(t *testing.T) {
	c := pleg.NewCache()
	if !c.Set("a", status("a", "new"), nil, at(2)) {
		t.Error("the first status was not stored")
	}
	if c.Set("a", status("a", "old"), nil, at(1)) {
		t.Error("an older status was stored")
	}
	if s, _ := c.Get("a"); s.Name != "new" {
		t.Errorf("the cache has the %s status", s.Name)
	}
	if !c.Set("a", status("a", "same time"), nil, at(2)) {
		t.Error("a status of the same stamp was not stored")
	}
}

// Rule 6: fresh is what was observed after minTime; not at minTime. It holds for
// reads and for wake-ups, whatever made it fresh.
func TestRule6ObservedAfterMinTime(t *testing.T) {
	for name, observe := range map[string]func(c *pleg.PodCache, at time.Time){
		"Set":             func(c *pleg.PodCache, at time.Time) { c.Set("a", status("a", ""), nil, at) },
		"Set of an error": func(c *pleg.PodCache, at time.Time) { c.Set("a", nil, errors.New("broken"), at) },
		"SetObservedTime": func(c *pleg.PodCache, at time.Time) { c.SetObservedTime("a", at) },
		"UpdateTime":      func(c *pleg.PodCache, at time.Time) { c.UpdateTime(at) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, known := range []bool{true, false} {
					c := pleg.NewCache()
					if known {
						c.Set("a", status("a", ""), nil, at(1))
					}
					woken := make(chan time.Time, 3)
					for _, minTime := range []time.Time{at(4), at(5), at(6)} {
						go func() {
							if _, err := c.GetNewerThan("a", minTime); err == nil || name == "Set of an error" {
								woken <- minTime
							}
						}()
					}
					synctest.Wait()
					observe(c, at(5))
					synctest.Wait()
					if len(woken) != 1 || <-woken != at(4) {
						t.Errorf("known=%v: observed at 5 s woke the wrong readers", known)
					}
					if !fresh(c, "a", at(4)) || fresh(c, "a", at(5)) || fresh(c, "a", at(6)) {
						t.Errorf("known=%v: observed at 5 s is fresh for the wrong times", known)
					}
					observe(c, at(7))
					synctest.Wait()
				}
			})
		})
	}
}

// Rule 7 through the generator: one hung pod holds back its own readers only.
func TestRule7HungPodHoldsBackItsOwnReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, polling)
		n.SetPods(pods(3)...)
		n.start()
		heal := n.HangIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.ExitContainer("pod-00001", "pod-00001-a", 1, "Error")
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		minTime := time.Now()
		for _, uid := range []types.UID{"pod-00000", "pod-00002", "absent"} {
			if _, _, err := n.cache.LookupNewerThan(ctx, uid, minTime); err != nil {
				t.Error(err)
			}
		}
		soon := time.Now().Add(time.Millisecond) // the list at this moment does not answer it
		if _, _, err := n.cache.LookupNewerThan(t.Context(), "nobody", soon); err != nil || time.Since(soon) > time.Second {
			t.Errorf("a reader of an unknown pod waits for %v: %v", time.Since(soon), err)
		}
		if _, _, err := n.cache.LookupNewerThan(ctx, "pod-00001", minTime); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the hung pod looks fresh: %v", err)
		}
		heal()
		s, err := n.cache.GetNewerThan("pod-00001", minTime)
		if err != nil || s.ContainerStatuses[0].State != pleg.ContainerStateExited {
			t.Errorf("after healing: %v %v", s, err)
		}
	})
}

// Rule 8: an error stands beside the last good status, and readers get both.
func TestRule8ErrorBesideLastGoodStatus(t *testing.T) {
	broken := errors.New("broken")
	c := pleg.NewCache()
	c.Set("a", status("a", "good"), nil, at(1))
	c.Set("a", nil, broken, at(2))
	c.Set("b", nil, broken, at(2))
	if s, err := c.GetNewerThan("a", at(1)); s.Name != "good" || !errors.Is(err, broken) {
		t.Errorf("got %v, %v", s, err)
	}
	if s, err := c.GetNewerThan("b", at(1)); s == nil || s.ID != "b" || !errors.Is(err, broken) {
		t.Errorf("got %v, %v", s, err)
	}
	c.Set("a", status("a", "good again"), nil, at(3))
	if s, err := c.Get("a"); s.Name != "good again" || err != nil {
		t.Errorf("got %v, %v", s, err)
	}
}

// Rule 9 on the cache alone: absence satisfies readers with an empty status.
func TestRule9AbsenceIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pleg.NewCache()
		c.Set("a", status("a", "there"), nil, at(1))
		got := make(chan *pleg.PodStatus)
		for range 2 {
			go func() {
				s, err := c.GetNewerThan("a", at(5))
				if err != nil {
					t.Error(err)
				}
				got <- s
			}()
			synctest.Wait()
			c.Delete("a")
			synctest.Wait()
			c.SetObservedTime("a", at(6))
			if s := <-got; s.ID != "a" || s.Name != "" {
				t.Errorf("got %v", s)
			}
			// The second time round, what was observed is outrun by a full list.
			c.UpdateTime(at(6))
			c = pleg.NewCache()
			c.Set("a", status("a", "there"), nil, at(1))
		}
		if len(c.GetAll()) != 1 {
			t.Error("GetAll shows what is absent")
		}
	})
}

// A cancelled reader leaves nothing behind, says why, and loses nothing that had
// already been granted.
func TestLookupNewerThan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pleg.NewCache()
		cause := errors.New("the worker is going down")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				s, _, err := c.LookupNewerThan(ctx, "a", at(5))
				if s == nil || !errors.Is(err, cause) || !strings.Contains(err.Error(), "pod a newer than 2026-01-01T00:00:05Z") {
					t.Errorf("got %v, %v", s, err)
				}
			})
		}
		synctest.Wait()
		if got := c.BlockedReaders(); got != 10 {
			t.Errorf("%d readers blocked", got)
		}
		cancel(cause)
		wg.Wait()
		if got := c.BlockedReaders(); got != 0 {
			t.Errorf("%d readers left behind", got)
		}
		c.Set("a", status("a", ""), nil, at(6))
		if _, _, err := c.LookupNewerThan(ctx, "a", at(5)); err != nil {
			t.Errorf("what is there is not returned to a cancelled reader: %v", err)
		}
	})
}

func TestGetAllIsSorted(t *testing.T) {
	c := pleg.NewCache()
	for _, uid := range []types.UID{"b", "c", "a"} {
		c.Set(uid, status(uid, ""), nil, at(1))
	}
	var uids []types.UID
	for _, s := range c.GetAll() {
		uids = append(uids, s.ID)
	}
	if !slices.Equal(uids, []types.UID{"a", "b", "c"}) {
		t.Error(uids)
	}
}

// naiveCache is the contract of the cache written down without a care for cost:
// it remembers everything that it was ever told, and derives the answers.
type naiveCache map[types.UID]*naiveEntry

type naiveEntry struct {
	status           string
	err              error
	known            bool
	stored, observed int
	absent           int
}

// The cache agrees with the naive one on every answer, for any history.
func TestCacheModel(t *testing.T) {
	randtest.Check(t, 100, func(t *testing.T, r *rand.Rand) {
		c := pleg.NewCache()
		uids := []types.UID{"a", "b", "c"}
		model := naiveCache{}
		for _, uid := range uids {
			model[uid] = &naiveEntry{}
		}
		global := 0
		broken := errors.New("broken")
		for i := range 30 {
			uid, when := randtest.Pick(r, uids...), 1+r.IntN(30)
			m := model[uid]
			what := randtest.Pick(r, "set", "fail", "observe", "delete", "update")
			t.Log(what, uid, when)
			switch what {
			case "set":
				name := fmt.Sprint(i)
				updated := c.Set(uid, status(uid, name), nil, at(when))
				if want := !m.known || m.stored <= when; updated != want {
					t.Fatalf("updated %v", updated)
				}
				if updated {
					m.status, m.err = name, nil
					m.store(when)
				}
			case "fail":
				if c.Set(uid, nil, broken, at(when)) {
					m.err = broken
					m.store(when)
				}
			case "observe":
				c.SetObservedTime(uid, at(when))
				if m.known {
					m.observed = max(m.observed, when)
				} else {
					m.absent = max(m.absent, when)
				}
			case "delete":
				c.Delete(uid)
				*m = naiveEntry{}
			case "update":
				c.UpdateTime(at(when))
				global = max(global, when)
				for _, m := range model {
					if m.absent <= global {
						m.absent = 0
					}
				}
			}
			for uid, m := range model {
				s, err := c.Get(uid)
				if s.ID != uid || s.Name != m.status || !errors.Is(err, m.err) {
					t.Fatalf("%s: the cache has %q, %v; not %q, %v", uid, s.Name, err, m.status, m.err)
				}
				for minTime := range 31 {
					if got, want := fresh(c, uid, at(minTime)), m.seen(global) > minTime; got != want {
						t.Fatalf("%s at %d s: fresh is %v", uid, minTime, got)
					}
				}
			}
		}
	})
}

func (m *naiveEntry) store(when int) {
	m.known, m.stored, m.observed, m.absent = true, when, when, 0
}

func (m *naiveEntry) seen(global int) int {
	if m.known {
		return max(m.observed, global)
	}
	return max(m.absent, global)
}

// A reader never gets data from before its minTime: what was so then and still
// is, is what it gets.
func TestReaderNeverGetsOlderThanMinTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(5)...)
		n.Delay(plegtest.GetPodStatus, "pod-00001", 300*time.Millisecond)
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 50*time.Millisecond)
		n.start()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				uid := types.UID(fmt.Sprintf("pod-%05d", i%5))
				time.Sleep(time.Duration(i*137) * time.Millisecond)
				if i%3 == 0 {
					n.SetContainer(uid, string(uid)+"-a", []pleg.State{pleg.ContainerStateExited, pleg.ContainerStateRunning}[i%2])
				}
				minTime := time.Now()
				was := n.Pod(uid).Containers[0].State
				s, err := n.cache.GetNewerThan(uid, minTime)
				if err != nil {
					t.Error(err)
				}
				if n.Pod(uid).Containers[0].State == was && s.ContainerStatuses[0].State != was {
					t.Errorf("%s was %s at %v; got %s", uid, was, minTime, s.ContainerStatuses[0].State)
				}
			})
		}
		wg.Wait()
	})
}

func BenchmarkGetNewerThanFanOut(b *testing.B) {
	const readers = 1000
	c := pleg.NewCache()
	now := clock.RealClock{}.Now()
	c.Set("a", status("a", ""), nil, now)
	b.ReportAllocs()
	for b.Loop() {
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() { _, _ = c.GetNewerThan("a", now) })
		}
		for c.BlockedReaders() < readers {
			runtime.Gosched()
		}
		now = now.Add(time.Second)
		c.UpdateTime(now)
		wg.Wait()
	}
}

func BenchmarkCacheGet(b *testing.B) {
	c := pleg.NewCache()
	for i := range 10000 {
		uid := types.UID(fmt.Sprint(i))
		c.Set(uid, status(uid, ""), nil, at(1))
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = c.Get("5000")
	}
}

// A status that is nil without an error is an empty one.
func TestSetOfNothing(t *testing.T) {
	c := pleg.NewCache()
	c.Set("a", status("a", "good"), nil, at(1))
	c.Set("a", nil, nil, at(2))
	if s, err := c.Get("a"); s == nil || s.ID != "a" || s.Name != "" || err != nil {
		t.Errorf("got %v %v", s, err)
	}
}

// No wake-up is lost between a reader's look at the cache and its falling asleep.
func TestNoWakeUpIsLost(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		c := pleg.NewCache()
		for i := range 20000 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = c.GetNewerThan("a", at(i))
			}()
			c.Set("a", status("a", ""), nil, at(i+1))
			<-done
		}
	})
}
