package contract_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Stop: a generator that NewGenericPLEG has not made is a mistake of the caller's code. Start and Stop do not
// block for ever.
func TestZeroGenericPLEG(t *testing.T) {
	for name, call := range map[string]func(g *pleg.GenericPLEG){
		"Start": func(g *pleg.GenericPLEG) { g.Start(t.Context()) },
		"Stop":  func(g *pleg.GenericPLEG) { g.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			panicked := make(chan any, 1)
			go func() {
				defer func() { panicked <- recover() }()
				call(&pleg.GenericPLEG{})
			}()
			select {
			case got := <-panicked:
				if text, is := got.(string); !is || !strings.Contains(text, "NewGenericPLEG") {
					t.Errorf("it panics with %v", got)
				}
			case <-time.After(10 * time.Second):
				t.Error("it blocks")
			}
		})
	}
}

// Stop: the end of the context of Start does what Stop does. The cache can be given to another generator at once,
// and the first one writes nothing into it any more.
func TestNewGeneratorAtTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		defer n.HangIgnoringCancel(plegtest.GetPodStatus, "b")()
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			n.g.Start(ctx)
			synctest.Wait()
			n.SetPod(bare("b", plegtest.Running("b1")))
			n.g.RequestRelist("b")
			cancel()
			n.g = pleg.NewGenericPLEG(n.Runtime, 0, 0, n.cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			n.RemovePod("b")
		}
		events := n.g.Watch()
		n.start()
		want(t, "of the last generator", read(events), "a Started a1")
		if got := len(n.cache.GetAll()); got != 1 {
			t.Errorf("the cache has %d pods", got)
		}
	})
}
