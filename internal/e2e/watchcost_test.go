package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// The defaults make a short run on a small node. docs/RUNTIMES.md shows the results of a run of one
// minute with 110 containers.
var (
	costContainers = flag.Int("cost.containers", 11, "how many containers run while TestCostOfWatches measures")
	costFor        = flag.Duration("cost.for", 2*time.Second, "how long it measures")
)

// usage is the resources that a process uses.
type usage struct {
	cpu              time.Duration
	files, anonymous int // anonymous memory in KiB
}

// used returns the resources that a watcher's process uses.
func (w *awayWatcher) used() (u usage) {
	w.t.Helper()
	dir := fmt.Sprintf("/proc/%d/", w.pid)
	threads, err := filepath.Glob(dir + "task/*/schedstat")
	if err != nil || len(threads) == 0 {
		w.t.Fatal(w.name, "has no threads:", err)
	}
	for _, file := range threads {
		var ns int64
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(text), &ns)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		u.cpu += time.Duration(ns)
	}
	files, err := os.ReadDir(dir + "fd")
	if err != nil {
		w.t.Fatal(err)
	}
	u.files = len(files)
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "RssAnon: %d kB", &u.anonymous) // other lines do not match
	}
	return u
}

// Watching exits needs no file descriptor for each running container. It needs almost no CPU time
// while nothing happens; the test only logs the CPU time.
func TestCostOfWatches(t *testing.T) {
	n := newBareNode(t)
	var ids []string
	var mu sync.Mutex
	var starting sync.WaitGroup
	for worker := range 3 {
		pod := n.runPod(fmt.Sprint("cost", worker))
		starting.Go(func() {
			for i := worker; i < *costContainers; i += 3 {
				id, err := n.client.Run(n.ctx, pod, testnode.Container{Name: fmt.Sprint("c", i), Command: testnode.Sleep()})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids = append(ids, id)
				mu.Unlock()
			}
		})
	}
	starting.Wait()
	config := watcherConfig{Endpoint: n.daemon.Endpoint(), ExitsDir: n.daemon.ExitsDir()}
	off := config
	off.WithoutExits = true
	with, without := n.startWatcher("with exit events", config), n.startWatcher("without", off)
	watchers := []*awayWatcher{with, without}
	n.eventually("the starts", func() string {
		for _, w := range watchers {
			for _, id := range ids {
				if !w.has(id, pleg.ContainerStarted) {
					return w.name + " has not reported " + id
				}
			}
		}
		return ""
	})
	t.Log(with.ask(""))
	time.Sleep(min(*costFor, 5*time.Second)) // by then, the watchers have finished their start
	var before, after [2]usage
	for i, w := range watchers {
		before[i] = w.used()
	}
	time.Sleep(*costFor)
	for i, w := range watchers {
		after[i] = w.used()
		cpu := float64((after[i].cpu - before[i].cpu).Microseconds()) / 1e3 / costFor.Seconds()
		t.Logf("%s, %d containers, %s: %.2f ms/s CPU, %.1f MiB anonymous, %d files", n.daemon.Runtime().Name, len(ids),
			w.name, cpu, float64(after[i].anonymous)/1024, after[i].files)
	}
	if more := after[0].files - after[1].files; more > 2 {
		t.Errorf("%d files more for %d containers", more, len(ids))
	}
}
