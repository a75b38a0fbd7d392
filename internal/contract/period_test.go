package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Rule 19: a relist period that is longer than half of the threshold would make the generator
// unhealthy between two lists.
func TestRule19LongPeriodIsHalfOfTheThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		rt.SetPods(pods(1)...)
		g := pleg.NewGenericPLEG(
			rt.Plain(), 0, time.Hour, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
		g.Start(t.Context())
		defer g.Stop()
		for range 60 {
			time.Sleep(time.Minute)
			healthy(t, g)
		}
		if got := rt.Calls(plegtest.GetPods); got < 40 || got > 41 {
			t.Errorf("%d lists in an hour", got)
		}
	})
}

// Rule 19: full lists come every period, whatever the event stream announces.
func TestRule19FullListsComeEveryPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(pods(5)...)
		n.start()
		time.Sleep(time.Hour)
		if got := n.Calls(plegtest.GetPods); got < 3600 || got > 3602 {
			t.Errorf("%d lists in an hour", got)
		}
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %s", got)
		}
	})
}

// Rule 10: where no pod can be listed by itself, a blocked reader is answered within a period.
func TestRule10ReaderWithoutPodGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, listsOnly)
		n.SetPods(pods(2)...)
		n.start()
		time.Sleep(10*time.Minute + 500*time.Millisecond)
		began := time.Now()
		if _, err := n.cache.GetNewerThan("pod-00000", began); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
