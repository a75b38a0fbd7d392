package cri_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// The two calls of GetPod run in parallel, so together they take as long as the slower call.
func TestGetPodAsksForBothListsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := node()
		client.hook = func(_ context.Context, method string) error {
			if method != "Version" {
				time.Sleep(time.Second)
			}
			return nil
		}
		r := newRuntime(client)
		began := time.Now()
		pod, err := r.GetPod(t.Context(), "uid")
		must(t, err)
		if len(pod.Sandboxes) != 1 || len(pod.Containers) != 1 {
			t.Errorf("%+v", pod)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("two lists of a second each took %v", took)
		}
	})
}

// A full list lists the sandboxes first, and then the containers.
func TestGetPodsAsksForSandboxesFirst(t *testing.T) {
	for _, opts := range [][]cri.Option{nil, {cri.WithPlainLists()}} {
		synctest.Test(t, func(t *testing.T) {
			client := node()
			var order []string
			client.hook = func(_ context.Context, method string) error {
				if strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Stream") {
					order = append(order, method)
					time.Sleep(time.Second)
				}
				return nil
			}
			getPods(t, newRuntime(client, opts...))
			half := len(order) / 2
			for i, method := range order {
				if strings.Contains(method, "Sandbox") != (i < half) {
					t.Fatalf("%v", order)
				}
			}
		})
	}
}

// If one of the two calls of GetPod fails, the other is cancelled, and GetPod returns the first
// failure.
func TestGetPodWhenAListFails(t *testing.T) {
	failure := func(method string) error { return status.Error(codes.Internal, method+" is broken") }
	for _, test := range []struct {
		name  string
		after map[string]time.Duration // when each list fails; stuck if absent
		want  string
	}{
		{"sandboxes", map[string]time.Duration{"ListPodSandbox": time.Second}, "ListPodSandbox"},
		{"containers", map[string]time.Duration{"ListContainers": time.Second}, "ListContainers"},
		{"sandboxes first", map[string]time.Duration{"ListPodSandbox": time.Second,
			"ListContainers": time.Minute}, "ListPodSandbox"},
		{"containers first", map[string]time.Duration{"ListPodSandbox": time.Minute,
			"ListContainers": time.Second}, "ListContainers"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := node()
				client.hook = func(ctx context.Context, method string) error {
					if method == "Version" {
						return nil
					}
					var fails <-chan time.Time
					if after, ok := test.after[method]; ok {
						fails = time.After(after)
					}
					select {
					case <-fails:
						return failure(method)
					case <-ctx.Done():
						return status.FromContextError(ctx.Err()).Err()
					}
				}
				r := newRuntime(client)
				began := time.Now()
				pod, err := r.GetPod(t.Context(), "uid")
				if pod != nil || status.Code(err) != codes.Internal ||
					!strings.Contains(err.Error(), test.want+" of pod uid") {
					t.Errorf("%+v, %v", pod, err)
				}
				if took := time.Since(began); took != time.Second {
					t.Errorf("it took %v", took)
				}
				if left := inFlight(r); len(left) != 0 {
					t.Errorf("in flight: %+v", left)
				}
			})
		})
	}
}

// If both calls of GetPod are stuck, GetPod returns when its context ends.
func TestGetPodIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := node()
		client.hook = func(ctx context.Context, method string) error {
			if method == "Version" {
				return nil
			}
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		r := newRuntime(client)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := r.GetPod(ctx, "uid")
			done <- err
		}()
		synctest.Wait()
		if got := inFlight(r); len(got) != 2 || got[0].PodUID != "uid" || got[1].PodUID != "uid" {
			t.Errorf("in flight: %+v", got)
		}
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled || errors.Is(err, pleg.ErrPodNotFound) {
			t.Error(err)
		}
	})
}

// The two answers of GetPod are decoded in parallel. Items that cross the end of a buffer need
// scratch memory, which the two decoders must not share.
func TestListsOfAPodShareNoScratch(t *testing.T) {
	plain := &stub{}
	for i := range 50 {
		plain.sandboxes = append(plain.sandboxes, sandboxOf(fmt.Sprintf("s%02d", i), uint32(i), 1))
		plain.containers = append(plain.containers, containerOf(fmt.Sprintf("c%02d", i), int64(i)))
	}
	want, err := newRuntime(plain).GetPod(t.Context(), "uid")
	must(t, err)
	chunked := &stub{chunk: 7, sandboxes: plain.sandboxes, containers: plain.containers}
	chunked.hook = meeting("ListPodSandbox", "ListContainers")
	r := newRuntime(chunked, quiet)
	for range 20 {
		got, err := r.GetPod(t.Context(), "uid")
		must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	}
}

// meeting returns a hook of a stub. The hook makes the calls of two methods wait for each other.
func meeting(one, other string) func(context.Context, string) error {
	ch := make(chan struct{})
	return func(ctx context.Context, method string) error {
		var err error
		switch method {
		case one:
			select {
			case ch <- struct{}{}:
			case <-ctx.Done():
				err = ctx.Err()
			}
		case other:
			select {
			case <-ch:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return err
	}
}

// GetPodStatus asks for the statuses of sandboxes and containers in parallel, up to eight at once.
func TestStatusesOfAPodAreAskedForAtOnce(t *testing.T) {
	for _, test := range []struct {
		sandboxes, containers int
		roundTrips            time.Duration
	}{
		{1, 1, 1}, {4, 4, 1}, {1, 7, 1}, {1, 8, 2}, {0, 20, 3},
	} {
		t.Run(fmt.Sprintf("%d and %d", test.sandboxes, test.containers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := node()
				client.hook = func(_ context.Context, method string) error {
					if strings.HasSuffix(method, "Status") {
						time.Sleep(time.Second)
					}
					return nil
				}
				client.sandboxes, client.containers = nil, nil
				for i := range test.sandboxes {
					client.sandboxes = append(client.sandboxes, sandbox(fmt.Sprint("s", i), "uid"))
				}
				for i := range test.containers {
					client.containers = append(client.containers,
						container(fmt.Sprint("c", i), "uid"))
				}
				r := newRuntime(client)
				pod := getPods(t, r)[0]
				began := time.Now()
				s := getPodStatus(t, r, pod)
				if len(s.SandboxStatuses) != test.sandboxes ||
					len(s.ContainerStatuses) != test.containers {
					t.Errorf("%+v", s)
				}
				if took := time.Since(began); took != test.roundTrips*time.Second {
					t.Errorf("with calls of a second each it took %v, want %d s", took,
						test.roundTrips)
				}
			})
		})
	}
}

// If the runtime's answer contains only items of other pods, GetPod does not find the pod.
func TestGetPodOfOtherPodsOnly(t *testing.T) {
	r := newRuntime(&stub{containers: []*runtimeapi.Container{container("c", "other")}})
	if pod, err := r.GetPod(t.Context(), "uid"); !errors.Is(err, pleg.ErrPodNotFound) || pod != nil {
		t.Errorf("%+v, %v", pod, err)
	}
}
