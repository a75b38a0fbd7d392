package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/plegtest"
)

// The adapter passes the conformance tests of pleg.Runtime on a real runtime. For a pod that does
// not exist, the conformance tests return an error.
func TestAdapterConforms(t *testing.T) {
	n := newNode(t)
	var ended, running *testnode.Pod
	running = n.runPod("running")
	n.run(running, testnode.Container{Name: "app", Command: testnode.Sleep()})
	n.run(running, testnode.Container{Name: "sidecar", Command: testnode.Sleep()})
	ended = n.runPod("ended")
	// If several containers exit at once, some runtimes show odd statuses, such as an end before
	// the start.
	for i := range 5 {
		n.awaitExit(n.run(ended, testnode.Container{Name: fmt.Sprintf("app-%d", i), Command: testnode.Exit(i)}))
	}
	n.must(n.client.StopPod(n.ctx, ended))
	empty := n.runPod("empty")
	if err := plegtest.TestRuntime(n.runtime, running.UID, ended.UID, empty.UID); err != nil {
		t.Error(err)
	}
	if err := plegtest.TestRuntime(n.runtime, testnode.NewUID()); err == nil {
		t.Error("the suite does not miss a pod that is not there")
	}
}

// The health report is correct while the runtime is idle, stuck, dead, and running again.
func TestHealthReport(t *testing.T) {
	n := newNode(t)
	promised := n.daemon.Runtime()
	stream := pleg.StreamUnsupported
	if promised.Events {
		stream = pleg.StreamConnected
	}
	pod := n.runPod("one")
	other := n.runPod("two")
	id := n.run(pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
	n.await(id, started)
	n.await(other.SandboxID, started)
	n.relistTwice()
	// This wait is needed because readers and calls that have just ended may still be counted.
	n.eventually("a report of an idle node", func() string {
		switch r := n.pleg.HealthReport(); {
		case !r.Healthy || r.Reason != "":
			return "not healthy: " + r.Reason
		case r.RelistError != "" || len(r.FailingPods) != 0:
			return "trouble: " + r.RelistError
		case r.Pods != 2 || r.Subscribers != 1 || r.Backlog != 0 || r.BlockedReaders != 0:
			return fmt.Sprintf("%d pods, %d subscribers, backlog %d, %d blocked readers; want 2, 1, 0, 0", r.Pods, r.Subscribers,
				r.Backlog, r.BlockedReaders)
		case !strings.HasPrefix(r.Runtime, promised.Reports) || !strings.Contains(r.Runtime, n.daemon.Endpoint()) ||
			strings.Contains(r.Runtime, "streaming lists") != promised.StreamingLists:
			return "the runtime is " + r.Runtime
		case r.Stream.State != stream || r.Stream.LastEvent.IsZero() == promised.Events:
			return fmt.Sprintf("the stream is %+v", r.Stream)
		case time.Since(r.LastRelist) > patience:
			return fmt.Sprintf("the last relist was at %v", r.LastRelist)
		}
		return ""
	})
	report := n.pleg.HealthReport()
	version, _, _ := strings.Cut(report.Runtime, " at ")
	t.Attr(attrRuntime, version)
	t.Attr(attrStream, string(report.Stream.State))
	t.Attr(attrLists, map[bool]string{true: "streaming", false: "plain"}[promised.StreamingLists])

	// If the runtime is stuck, the report lists the call in flight and counts the blocked reader.
	n.must(n.daemon.Freeze())
	reading, stop := context.WithCancel(n.ctx)
	var read sync.WaitGroup
	// SIGSTOP may need a moment to stop every thread. Until then, the runtime may still answer
	// reads.
	read.Go(func() {
		for reading.Err() == nil {
			_, _, _ = n.cache.LookupNewerThan(reading, pod.UID, time.Now())
		}
	})
	n.eventually("a report of a stuck runtime", func() string {
		r := n.pleg.HealthReport()
		if r.BlockedReaders != 1 {
			return fmt.Sprintf("%d blocked readers", r.BlockedReaders)
		}
		for _, c := range r.CallsInFlight {
			if slices.Contains(listCalls, c.Method) && time.Since(c.Since) > 500*time.Millisecond {
				return ""
			}
		}
		return fmt.Sprintf("calls in flight: %+v", r.CallsInFlight)
	})
	stop()
	read.Wait()
	n.must(n.daemon.Thaw())
	n.eventually("a report of a runtime that answers again", func() string {
		r := n.pleg.HealthReport()
		if r.BlockedReaders != 0 || time.Since(r.LastRelist) > 5*time.Second {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	})

	// If the runtime was killed, the report contains the error and the state of the event stream.
	n.must(n.daemon.Kill())
	n.eventually("a report of a runtime that is gone", func() string {
		r := n.pleg.HealthReport()
		if r.RelistError == "" || r.Stream.State == pleg.StreamConnected || r.Pods != 2 {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	})
	n.must(n.daemon.Restart(n.ctx))
	n.eventually("a report of a runtime that is back", func() string {
		r := n.pleg.HealthReport()
		if !r.Healthy || r.RelistError != "" || r.Stream.State != stream || r.Pods != 2 {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	})
}
