//go:build darwin || linux

package plegz_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// BenchmarkViewer measures the CPU time and memory that viewers cost an agent. The node runs 1,000
// pods, with 50 changes in each second of real time. In the case named unasked, the handler gets no
// requests. In the case named without, no handler exists. An iteration takes a second, so use
// -benchtime=20x.
func BenchmarkViewer(b *testing.B) {
	b.Run("without", func(b *testing.B) { benchmarkViewers(b, -1) })
	b.Run("unasked", func(b *testing.B) { benchmarkViewers(b, 0) })
	b.Run("viewers=1", func(b *testing.B) { benchmarkViewers(b, 1) })
	b.Run("viewers=10", func(b *testing.B) { benchmarkViewers(b, 10) })
	b.Run("viewers=64", func(b *testing.B) { benchmarkViewers(b, 64) })
}

func benchmarkViewers(b *testing.B, viewers int) {
	const pods = 1000
	n := &node{Runtime: plegtest.NewRuntime(), cache: pleg.NewCache()}
	n.EmitOnChange(true)
	n.g = pleg.New(n.Runtime, pleg.WithCache(n.cache), pleg.WithLogger(logr.Discard()))
	ids := make([]string, pods)
	uids := make([]types.UID, pods)
	for i := range pods {
		ids[i] = fmt.Sprintf("container-%04d", i)
		uids[i] = n.setPod("team", fmt.Sprintf("pod-%04d", i), plegtest.Running(ids[i]))
	}
	n.g.Start(b.Context())
	defer n.g.Stop()
	_ = n.g.Relist(b.Context())
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	if viewers >= 0 {
		page := httptest.NewServer(plegz.Handler(n.g))
		defer page.Close()
		defer page.CloseClientConnections()
		for range viewers {
			go view(ctx, page.URL)
		}
	}
	time.Sleep(2 * time.Second)
	before := usedCPU(b)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	changes := 0
	for b.Loop() {
		for range 50 {
			<-tick.C
			i := changes * 7 % pods
			changes++
			next := fmt.Sprintf("container-%04d-%d", i, changes)
			n.RestartContainer(uids[i], ids[i], next)
			n.RemoveContainer(uids[i], ids[i])
			ids[i] = next
		}
	}
	b.ReportMetric((usedCPU(b)-before).Seconds()*1000/b.Elapsed().Seconds(), "cpu-ms/s")
	b.ReportMetric(float64(heapInUse())/1e6, "heap-MB")
	b.ReportMetric(0, "ns/op")
}

// view reads the stream until ctx ends.
func view(ctx context.Context, url string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/?format=stream", nil)
	if err != nil {
		return
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
}

func usedCPU(b testing.TB) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
