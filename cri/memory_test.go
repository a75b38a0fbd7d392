package cri_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/crimessage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// heapOf returns how much heap the result of f occupies, in bytes.
func heapOf(f func() any) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	held := f()
	runtime.GC()
	runtime.GC() // the second collection empties the pools of buffers
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(held)
	return max(after.HeapAlloc, before.HeapAlloc) - before.HeapAlloc
}

const mib = 1 << 20

// A message can contain millions of empty items. A list fails when it exceeds the limit on items,
// whether the list is streamed or plain.
func TestListsAreBoundedInItems(t *testing.T) {
	empty := strings.Repeat("\x0a\x00", 8_000_000)
	for name, r := range map[string]*cri.Runtime{
		"plain":     newRuntime(&stub{chunk: 16 << 10, raw: []byte(empty)}, cri.WithPlainLists(), quiet),
		"streamed":  newRuntime(&endless{of: container("c", "uid"), per: 500, stub: stub{chunk: 16 << 10}}, quiet),
		"not by us": newRuntime(&endless{of: container("c", "uid"), per: 500}, quiet),
		"nil items": newRuntime(&endless{per: 500}, quiet),
	} {
		var err error
		bytes := allocated(func() { _, err = r.GetPods(t.Context(), true) })
		if err == nil || !strings.Contains(err.Error(), "the list has more than 100000 items") {
			t.Errorf("%s: %v", name, err)
		}
		if bytes > 800*mib { // in total, not at once
			t.Errorf("%s: %d MiB allocated", name, bytes/mib)
		}
		if items, pods, _ := cri.Held(r); items+pods != 0 {
			t.Errorf("%s: %d items, %d pods held", name, items, pods)
		}
	}
}

// A streamed list fails if it exceeds 256 MiB, which is four times the limit of a plain list.
func TestListsAreBoundedInBytes(t *testing.T) {
	big := container("c", "uid")
	big.Annotations = map[string]string{"big": strings.Repeat("x", 60*mib)}
	r := newRuntime(&endless{of: big, per: 1, stub: stub{chunk: mib}}, quiet)
	if _, err := r.GetPods(t.Context(), true); err == nil ||
		!strings.Contains(err.Error(), "the list has more than 256 MiB") {
		t.Error(err)
	}
}

// A stream of messages without items fails at a limit, long before the deadline of the list.
func TestListsAreBoundedInEmptyMessages(t *testing.T) {
	for name, r := range map[string]*cri.Runtime{
		"decoded":   newRuntime(&endless{stub: stub{chunk: 16 << 10}}, quiet),
		"not by us": newRuntime(&endless{}, quiet),
	} {
		if _, err := r.GetPods(t.Context(), true); err == nil ||
			!strings.Contains(err.Error(), "the list has more than 1000 messages without an item") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A message of 60 MiB, larger than gRPC's default and the kubelet's limit, is accepted.
func TestLargeMessages(t *testing.T) {
	s, r := serverAndRuntime(t, criserver.WithModel(criserver.Containerd17))
	s.RunPod(criserver.PodConfig{UID: "uid"})
	heal := s.Inject(criserver.Fault{Method: "ListPodSandbox", Padding: 60 << 20})
	if pods := getPods(t, r); len(pods) != 1 {
		t.Errorf("%d pods", len(pods))
	}
	heal()
	defer s.Inject(criserver.Fault{Method: "ListPodSandbox", Padding: 64 << 20})()
	if _, err := r.GetPods(t.Context(), true); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "the limit is 64 MiB a message") {
		t.Error(err)
	}
}

// endless streams messages without end. Each message contains e.per copies of the container e.of.
type endless struct {
	stub
	of  *runtimeapi.Container
	per int
}

func (e *endless) StreamPodSandboxes(ctx context.Context, req *runtimeapi.ListPodSandboxRequest,
	opts ...grpc.CallOption) (answers[runtimeapi.ListPodSandboxResponse], error) {
	e.batch = 1
	return e.stub.StreamPodSandboxes(ctx, req, opts...)
}

func (e *endless) StreamContainers(_ context.Context, _ *runtimeapi.ListContainersRequest,
	opts ...grpc.CallOption) (answers[runtimeapi.ListContainersResponse], error) {
	resp := &runtimeapi.ListContainersResponse{Containers: slices.Repeat([]*runtimeapi.Container{e.of}, e.per)}
	messages, encoded := 0, []byte(nil)
	if e.of != nil {
		var err error
		if encoded, err = crimessage.Marshal(resp); err != nil {
			return nil, err
		}
	}
	return stream[runtimeapi.ListContainersResponse]{recv: func() (*runtimeapi.ListContainersResponse, error) {
		if messages++; messages*(1+len(encoded)) > 400*mib || messages > 200_000 {
			return nil, errors.New("the stream was read on and on")
		}
		return answer(&e.stub, resp, encoded, opts)
	}}, nil
}

// Unusable items are counted in each list, but only a few are held and logged.
func TestBadItemsAreNotKept(t *testing.T) {
	const n = 90_000
	for reason, item := range map[string]func(i int) []byte{
		"without_pod_uid_label": func(i int) []byte { return idField(fmt.Sprint(i)) },
		"item_without_id":       func(int) []byte { return nil },
		"duplicate_id":          func(int) []byte { return idField("c") },
	} {
		node := &stub{chunk: 16 << 10, raw: []byte{}}
		for i := range n {
			node.raw = append(node.raw, listItem(item(i))...)
		}
		var logged strings.Builder
		logger := funcr.New(func(prefix, args string) { logged.WriteString(prefix + args) }, funcr.Options{Verbosity: 10})
		r := newRuntime(node, cri.WithPlainLists(), cri.WithLogger(logger))
		held := heapOf(func() any {
			for range 2 {
				if pods := getPods(t, r); len(pods) != 0 {
					t.Errorf("%s: %d pods", reason, len(pods))
				}
			}
			return r
		})
		if held > 2*mib {
			t.Errorf("%s: %d MiB held", reason, held/mib)
		}
		if items, _, _ := cri.Held(r); items > 100 {
			t.Errorf("%s: %d items held", reason, items)
		}
		// Of n items with one ID, n-1 are duplicates.
		if got := metric(t, r, "pleg_cri_bad_items_total", reason); got != 2*n && got != 2*(n-1) {
			t.Errorf("%s: %v counted", reason, got)
		}
		if logged.Len() > 64<<10 {
			t.Errorf("%s: %d bytes logged", reason, logged.Len())
		}
	}
}

// If all items of a list lose the label with their pod's UID, the Runtime holds only a few of the
// items.
func TestItemsThatLoseTheirPods(t *testing.T) {
	const n = 1000
	node := &stub{chunk: 1 << 10}
	for i := range n {
		node.containers = append(node.containers, container(fmt.Sprint(i), "uid"))
	}
	r := newRuntime(node, quiet)
	if got := len(getPods(t, r)[0].Containers); got != n {
		t.Fatalf("%d containers", got)
	}
	for i := range node.containers {
		node.containers[i] = container(fmt.Sprint(i), "")
	}
	for range 2 {
		if pods := getPods(t, r); len(pods) != 0 {
			t.Errorf("%d pods", len(pods))
		}
		if items, _, _ := cri.Held(r); items > 100 {
			t.Errorf("%d items held", items)
		}
	}
	if got := metric(t, r, "pleg_cri_bad_items_total", "without_pod_uid_label"); got != 2*n {
		t.Errorf("%v counted", got)
	}
}

// The error of a call contains at most 4 KiB of the runtime's text. The error still keeps its code
// and the errors that it wraps.
func TestErrorTextsAreCut(t *testing.T) {
	long := strings.Repeat("disk on fire\n", 4*mib/13)
	pod := &pleg.Pod{ID: "a", Containers: []*pleg.Container{{Name: "app", ID: pleg.ContainerID{ID: "c"}}}}
	for name, test := range map[string]struct {
		err  func() error
		code codes.Code
		is   error
	}{
		"a status": {func() error { return status.Error(codes.Internal, long) }, codes.Internal, nil},
		"with details": {func() error {
			s, err := status.New(codes.Internal, "short").WithDetails(&runtimeapi.VersionRequest{Version: long})
			must(t, err)
			return s.Err()
		}, codes.Internal, nil},
		"a wrapped status": {func() error {
			return fmt.Errorf("proxy: %w", status.Error(codes.Aborted, long))
		}, codes.Aborted, nil},
		"a sentinel beside it": {func() error {
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, status.Error(codes.Aborted, long))
		}, codes.Aborted, context.DeadlineExceeded},
		"a text": {func() error { return errors.New(long) }, codes.Unknown, nil},
		"not in UTF-8": {func() error {
			return status.Error(codes.Internal, strings.Repeat("\xff", mib))
		}, codes.Internal, nil},
	} {
		node := &stub{
			sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "a")},
			hook: func(_ context.Context, method string) error {
				if strings.HasPrefix(method, "Version") {
					return nil
				}
				return test.err()
			},
		}
		r := newRuntime(node, quiet)
		for call, f := range map[string]func() error{
			"GetPods":      func() error { _, err := r.GetPods(t.Context(), true); return err },
			"GetPod":       func() error { _, err := r.GetPod(t.Context(), "a"); return err },
			"GetPodStatus": func() error { _, err := r.GetPodStatus(t.Context(), pod); return err },
			"events": func() error {
				return r.WatchContainerEvents(t.Context(), func() {}, func(pleg.ContainerEvent) {})
			},
		} {
			var errs []error
			held := heapOf(func() any {
				for range 5 {
					errs = append(errs, f())
				}
				return errs
			})
			if held > mib {
				t.Errorf("%s, %s: %d KiB held", name, call, held>>10)
			}
			err := errs[0]
			if n := len(err.Error()); n > 5<<10 {
				t.Errorf("%s, %s: %d bytes", name, call, n)
			}
			if !strings.HasPrefix(err.Error(), "cri: ") || status.Code(err) != test.code ||
				test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%s, %s: code %v of %.100s", name, call, status.Code(err), err)
			}
		}
	}
}

// If a runtime refuses streams with a long text, the text is cut in logs and errors.
func TestLongRefusalOfStreams(t *testing.T) {
	node := &stub{
		sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "a")},
		hook: func(_ context.Context, method string) error {
			if strings.HasPrefix(method, "Stream") || strings.HasPrefix(method, "GetContainerEvents") {
				return status.Error(codes.Unimplemented, strings.Repeat("no ", mib))
			}
			return nil
		},
	}
	var logged strings.Builder
	logger := funcr.New(func(prefix, args string) { logged.WriteString(prefix + args) }, funcr.Options{Verbosity: 10})
	r := newRuntime(node, cri.WithLogger(logger))
	if pods := getPods(t, r); len(pods) != 1 {
		t.Errorf("%d pods", len(pods))
	}
	if logged.Len() > 8<<10 {
		t.Errorf("%d bytes logged", logged.Len())
	}
	err := r.WatchContainerEvents(t.Context(), func() {}, func(pleg.ContainerEvent) {})
	if !errors.Is(err, pleg.ErrEventsUnsupported) || len(err.Error()) > 5<<10 {
		t.Errorf("%.100s", err)
	}
}

func idField(id string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
}

// Removing a very large pod takes at most four times the CPU time of adding it.
func TestHugePodGoes(t *testing.T) {
	client := &stub{sandboxes: []*runtimeapi.PodSandbox{sandbox("s", "uid")}}
	for i := range 40_000 {
		client.containers = append(client.containers, container(fmt.Sprint("c", i), "uid"))
	}
	r := newRuntime(client, cri.WithPlainLists(), quiet)
	list := func() time.Duration {
		before, _ := cpuTime(t)
		getPods(t, r)
		after, _ := cpuTime(t)
		return after - before
	}
	comes := list()
	client.containers = nil
	if goes := list(); goes > 4*comes {
		t.Errorf("removing it took %v, and adding it %v", goes, comes)
	}
}
