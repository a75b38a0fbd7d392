package contract_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 6: state is fresh if it was observed after minTime; a state observed at minTime is not
// fresh. Reads and wake-ups use the same rule.
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

// A cancelled reader is removed, and its call returns the cause. A read whose answer is in the
// cache returns the answer, even if its context has ended.
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

// A reader is not sent a state from before its minTime, except if the state has not changed since.
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

// No wake-up is lost between a reader's check of the cache and its wait.
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
