package plegz_test

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

func heapInUse() int {
	runtime.GC()
	runtime.GC() // the second run also empties the sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // a heap is not that large
}

// In a flood of requests, each document is made only once between two changes.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.pass(time.Second)
		for _, format := range []string{"json", "text"} {
			n.get("/?format=" + format)
			n.pass(400 * time.Millisecond)
			made := n.get("/?format=" + format).Body.String()
			for range 200 {
				time.Sleep(time.Millisecond) // fake time
				if n.get("/?format="+format).Body.String() != made {
					t.Fatalf("%s is made anew although nothing has changed", format)
				}
			}
			n.pass(time.Second)
			if n.get("/?format="+format).Body.String() == made {
				t.Errorf("%s is as it was a second ago", format)
			}
		}
		n.ExitContainer(uid, "nginx", 1, "Error")
		n.pass(300 * time.Millisecond)
		for _, format := range []string{"json", "text"} {
			if !strings.Contains(n.get("/?format="+format).Body.String(), "crashed") {
				t.Errorf("%s has not what has changed", format)
			}
		}
	})
}

// Before its first request, a handler costs the generator nothing. Eleven minutes after its last
// request, it again costs nothing.
func TestUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(100)
		relist := func() float64 { return testing.AllocsPerRun(100, func() { _ = n.g.Relist(t.Context()) }) }
		// goroutines counts the functions of package plegz on all goroutine stacks.
		goroutines := func() int {
			synctest.Wait()
			stacks := make([]byte, 1<<20)
			return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "pleg/plegz.")
		}
		cost := func() string {
			return fmt.Sprintf("%d calls, %d subscribers, %v allocations a relist",
				goroutines(), n.g.HealthReport().Subscribers, relist())
		}
		without := cost()
		n.Handler = plegz.Handler(n.g)
		n.pass(time.Minute)
		if got := cost(); got != without {
			t.Errorf("%s; without a handler %s", got, without)
		}
		n.get("/")
		synctest.Wait()
		if got := cost(); got == without {
			t.Errorf("no cost is seen while somebody looks: %s", got)
		}
		n.pass(11 * time.Minute)
		if got := cost(); got != without {
			t.Errorf("%s after the last client; without a handler %s", got, without)
		}
	})
}

// With 1,000 pods and 50 changes a second, one viewer multiplies the bytes that the agent allocates
// by at most five. BenchmarkViewer measures the CPU time.
func TestViewerCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(1000)
		state := pleg.ContainerStateExited
		change := func() (allocated float64) {
			before := totalAlloc()
			for i := range 500 {
				n.SetContainer(types.UID(fmt.Sprintf("team/pod-%04d", i)), fmt.Sprintf("container-%04d", i), state)
				n.pass(20 * time.Millisecond)
			}
			if state == pleg.ContainerStateExited {
				state = pleg.ContainerStateRunning
			} else {
				state = pleg.ContainerStateExited
			}
			return float64(totalAlloc()-before) / 10
		}
		without := change()
		l, stop := n.serve()
		c := ask(t, l, "GET /?format=stream HTTP/1.1\nHost: localhost\n\n")
		go func() { _, _ = io.Copy(io.Discard, c) }()
		n.pass(2 * time.Second)
		with := change()
		_ = c.Close()
		stop()
		t.Logf("%.0f kB a second without a viewer, %.0f with one", without/1000, with/1000)
		if with > 5*without {
			t.Errorf("%.0f kB are allocated a second with a viewer, %.0f without", with/1000, without/1000)
		}
	})
}

func totalAlloc() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
