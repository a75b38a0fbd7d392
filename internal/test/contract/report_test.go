package contract_test

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// If lists or the stream fail repeatedly, the report shows when the first failed list began, and when
// the stream broke.
func TestFailingSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Delay: 900 * time.Millisecond, Err: errors.New("broken")})
		healStream := n.Fail(plegtest.WatchContainerEvents, plegtest.AnyPod, errors.New("refused"))
		began := time.Now()
		n.BreakEventStreams(errors.New("reset"))
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

// The report can be encoded as JSON for a health endpoint.
func TestReportAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(2)...)
		heal := n.BlockIgnoringCancel(plegtest.GetPodStatus, "pod-00001")
		n.start()
		time.Sleep(2500 * time.Millisecond)
		b, err := json.Marshal(n.g.HealthReport())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "report", []string{string(b)}, `{"healthy":true,`+
			`"lastRelist":"2000-01-01T00:00:02Z","lastAnswer":"2000-01-01T00:00:02Z","pods":2,`+
			`"callsInFlight":[{"method":"GetPodStatus","podUID":"pod-00001",`+
			`"object":"pod default/pod-00001 (pod-00001)","since":"2000-01-01T00:00:00Z"}],`+
			`"failingPods":[{"podUID":"pod-00001","namespace":"default","name":"pod-00001",`+
			`"stuckSince":"2000-01-01T00:00:00Z"}],`+
			`"stream":{"state":"connected","since":"2000-01-01T00:00:00Z"},`+
			`"exitStream":{"state":"connected","since":"2000-01-01T00:00:00Z"},`+
			`"blockedReaders":0,"subscribers":0,"backlog":0}`)
		heal()
	})
}
