package cri_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// BenchmarkIdleRelist measures a list of the whole node in which nothing has changed. It uses a
// unix socket of a server in another process:
//
//   - how=plain, how=streaming: the Runtime gets plain or streamed lists and decodes changes;
//   - how=decoded: gRPC receives both lists, and the generated code decodes them;
//   - how=floor: gRPC receives both lists, and nothing decodes them.
//
// cpu-ns/op is the CPU time of this process, including all its goroutines and the kernel's work for
// it. Plain and streaming results cannot be compared. The server encodes a plain list once, and
// sends it in the same order each time. The server encodes a stream each time, in random order.
// With streams, the Runtime therefore reads the items that it keeps in random order, and waits more
// often for the server.
func BenchmarkIdleRelist(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("containers=%d", n), func(b *testing.B) {
			endpoint := startServerProcess(b, n, 0)
			b.Run("how=plain", func(b *testing.B) {
				benchmarkGetPods(b, endpoint, n, cri.WithPlainLists())
			})
			b.Run("how=streaming", func(b *testing.B) { benchmarkGetPods(b, endpoint, n) })
			b.Run("how=decoded", func(b *testing.B) { benchmarkDecoded(b, endpoint) })
			b.Run("how=floor", func(b *testing.B) { benchmarkFloor(b, endpoint) })
		})
	}
}

// BenchmarkIdleRelistLabels is like BenchmarkIdleRelist, with plain lists of 1000 containers. In
// addition to the kubelet's labels, each sandbox and each container has the given number of labels.
func BenchmarkIdleRelistLabels(b *testing.B) {
	const containers = 1000
	for _, labels := range []int{0, 10, 100} {
		b.Run(fmt.Sprintf("labels=%d", labels), func(b *testing.B) {
			endpoint := startServerProcess(b, containers, labels)
			b.Run("how=plain", func(b *testing.B) {
				benchmarkGetPods(b, endpoint, containers, cri.WithPlainLists())
			})
			b.Run("how=floor", func(b *testing.B) { benchmarkFloor(b, endpoint) })
		})
	}
}

func benchmarkGetPods(b *testing.B, endpoint string, containers int, opts ...cri.Option) {
	r, err := cri.Connect(b.Context(), endpoint, opts...)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	before, err := r.GetPods(b.Context(), true)
	if err != nil || len(before) != containers/2 {
		b.Fatalf("%d pods, %v", len(before), err)
	}
	measureCPU(b, func() {
		pods, err := r.GetPods(b.Context(), true)
		if err != nil {
			b.Fatal(err)
		}
		if &pods[0] != &before[0] {
			b.Fatal("an idle relist made another listing")
		}
	})
}

func benchmarkDecoded(b *testing.B, endpoint string) {
	client := runtimeapi.NewRuntimeServiceClient(dial(b, endpoint))
	measureCPU(b, func() {
		if _, err := client.ListPodSandbox(b.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil {
			b.Fatal(err)
		}
		if _, err := client.ListContainers(b.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
			b.Fatal(err)
		}
	})
}

func benchmarkFloor(b *testing.B, endpoint string) {
	conn := dial(b, endpoint)
	measureCPU(b, func() { receiveLists(b, b.Context(), conn) })
}

// receiveLists receives both lists and discards them.
func receiveLists(tb testing.TB, ctx context.Context, conn *grpc.ClientConn) {
	discard := grpc.ForceCodecV2(discardingCodec{})
	for method, request := range map[string]any{
		"/runtime.v1.RuntimeService/ListPodSandbox": &runtimeapi.ListPodSandboxRequest{},
		"/runtime.v1.RuntimeService/ListContainers": &runtimeapi.ListContainersRequest{},
	} {
		if err := conn.Invoke(ctx, method, request, nil, discard); err != nil {
			tb.Fatal(err)
		}
	}
}

// discardingCodec receives a message and discards it.
type discardingCodec struct{}

func (discardingCodec) Name() string                         { return "" }
func (discardingCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (discardingCodec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}

func dial(tb testing.TB, endpoint string) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// BenchmarkHeapPerPod measures the heap per pod, reported as heap-B/pod; the time means nothing. It
// measures the Runtime alone after a list, and a generator with its cache after the first relist. A
// pod has a sandbox and two containers, with the kubelet's labels and annotations and the given
// number of other labels.
func BenchmarkHeapPerPod(b *testing.B) {
	const pods = 1000
	for _, labels := range []int{0, 10} {
		endpoint := startServerProcess(b, 2*pods, labels)
		b.Run(fmt.Sprintf("labels=%d/by=runtime", labels), func(b *testing.B) {
			benchmarkHeap(b, endpoint, pods, func(r *cri.Runtime) any {
				list, err := r.GetPods(b.Context(), true)
				if err != nil || len(list) != pods {
					b.Fatalf("%d pods, %v", len(list), err)
				}
				return list
			})
		})
		b.Run(fmt.Sprintf("labels=%d/by=generator", labels), func(b *testing.B) {
			benchmarkHeap(b, endpoint, pods, func(r *cri.Runtime) any {
				cache := pleg.NewCache()
				g := pleg.New(r, pleg.WithCache(cache), pleg.WithLogger(logr.Discard()))
				_ = g.Relist(b.Context())
				if n := len(cache.GetAll()); n != pods {
					b.Fatalf("%d pods", n)
				}
				return g
			})
		})
	}
}

// benchmarkHeap reports how much the heap grows per pod when list is called.
func benchmarkHeap(b *testing.B, endpoint string, pods int, list func(*cri.Runtime) any) {
	var grown uint64
	for b.Loop() {
		r, err := cri.Connect(b.Context(), endpoint, cri.WithPlainLists())
		if err != nil {
			b.Fatal(err)
		}
		before := heapInUse()
		held := list(r)
		after := heapInUse()
		runtime.KeepAlive(held)
		_ = r.Close()
		grown = after - min(before, after)
	}
	b.ReportMetric(float64(grown)/float64(pods), "heap-B/pod")
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // the second collection empties the sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
