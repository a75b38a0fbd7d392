package pleg_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
)

// Stop waits for what it has cancelled, and not for the new list of a Relist beside
// it.
func TestStopBesideRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		n.start()
		time.Sleep(2500 * time.Millisecond)
		n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Do: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			return ctx.Err()
		}})
		n.Delay(plegtest.GetPods, plegtest.AnyPod, 20*time.Second)
		n.g.RequestReinspect("pod-00000")
		done := make(chan struct{})
		go func() { defer close(done); n.g.Relist() }()
		time.Sleep(100 * time.Millisecond)
		before := time.Now()
		n.g.Stop()
		if took := time.Since(before); took != 100*time.Millisecond {
			t.Errorf("Stop took %v", took)
		}
		n.Heal()
		<-done
		n.g.Stop()
	})
}
