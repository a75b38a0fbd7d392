package contract_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// Every line of the log has the logger's name.
func TestLoggerHasAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		prefixes := map[string]int{}
		n := newNode(t, pleg.WithLogger(funcr.New(func(prefix, _ string) {
			mu.Lock()
			defer mu.Unlock()
			prefixes[prefix]++
		}, funcr.Options{Verbosity: 5})))
		n.SetPods(bare("a", plegtest.Running("a1")))
		n.start()
		n.g.Stop()
		if len(prefixes) != 1 || prefixes["pleg"] == 0 {
			t.Errorf("lines by the name of their logger: %v", prefixes)
		}
	})
}

// What fails again and again has failed since the first time: lists and streams.
func TestFailingSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		heal := n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("broken"))
		healStream := n.Fail(plegtest.WatchContainerEvents, plegtest.AnyPod, errors.New("refused"))
		began := time.Now()
		n.BreakStreams(errors.New("reset"))
		for range 3 {
			time.Sleep(10 * time.Second)
			r := n.g.HealthReport()
			if want := began.Add(500 * time.Millisecond); r.RelistError == "" || !r.RelistFailingSince.Equal(want) {
				t.Errorf("%q since %v, want %v", r.RelistError, r.RelistFailingSince, want)
			}
			if r.Stream.State == pleg.StreamConnected || !r.Stream.Since.Equal(began) {
				t.Errorf("the stream is %s since %v, want %v", r.Stream.State, r.Stream.Since, began)
			}
		}
		heal()
		healStream()
		time.Sleep(2 * time.Minute)
		r := n.g.HealthReport()
		if r.RelistError != "" || !r.RelistFailingSince.IsZero() {
			t.Errorf("%q since %v", r.RelistError, r.RelistFailingSince)
		}
		if r.Stream.State != pleg.StreamConnected || !r.Stream.Since.After(began.Add(30*time.Second)) {
			t.Errorf("the stream is %s since %v", r.Stream.State, r.Stream.Since)
		}
	})
}
