package cri_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// reconnect makes the Runtime connect to the event stream. Before that, the Runtime asks for the
// runtime's version.
func reconnect(t *testing.T, r *cri.Runtime) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := r.WatchContainerEvents(ctx, cancel, func(pleg.ContainerEvent) {}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// If the runtime's name changes, for example in an upgrade, all items and statuses get the new
// name, including unchanged items and held statuses of exited containers.
func TestRuntimeChangesItsName(t *testing.T) {
	for _, test := range []struct {
		name string
		stub stub
	}{
		{"delta decoding", stub{chunk: 16}},
		{"delta decoding of streams", stub{chunk: 16, batch: 1}},
		{"decoded by the client", stub{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := &test.stub
			client.sandboxes = []*runtimeapi.PodSandbox{sandbox("s", "uid"), sandbox("s2", "other")}
			client.containers = []*runtimeapi.Container{exited("c"), container("d", "other")}
			n := newExitNode()
			client.containerStatus = n.containerStatus
			client.sandboxStatus = node().sandboxStatus
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			r := newRuntime(client, cri.WithClock(clock), quiet)
			named := func(want string, pods ...*pleg.Pod) {
				t.Helper()
				for _, pod := range pods {
					for _, c := range append(pod.Containers[:1:1], pod.Sandboxes...) {
						if c.ID.Type != want {
							t.Errorf("%s, want the runtime %s", c.ID, want)
						}
					}
				}
			}
			inspected := func(pod *pleg.Pod, want string, calls int) {
				t.Helper()
				before := n.asked
				if got := getPodStatus(t, r, pod).ContainerStatuses[0].ID.Type; got != want {
					t.Errorf("a status of the runtime %s, want %s", got, want)
				}
				if got := n.asked - before; got != calls {
					t.Errorf("asked %d times, want %d", got, calls)
				}
				clock.SetTime(clock.Now().Add(time.Minute))
			}
			first := getPods(t, r)
			named("stub", first...)
			inspected(first[1], "stub", 1)
			inspected(first[1], "stub", 1)
			inspected(first[1], "stub", 0)

			client.name = "renamed"
			reconnect(t, r)
			inspected(first[1], "renamed", 1)
			pod, err := r.GetPod(t.Context(), "uid")
			must(t, err)
			named("renamed", pod)
			second := getPods(t, r)
			named("renamed", second...)
			named("stub", first...) // a returned pod is not modified
			want := getPods(t, newRuntime(&stub{name: "renamed", sandboxes: client.sandboxes,
				containers: client.containers}))
			if diff := cmp.Diff(want, second); diff != "" {
				t.Error(diff)
			}
			inspected(second[1], "renamed", 0)

			// Later lists do not decode unchanged items again.
			decoded := metric(t, r, "pleg_cri_listed_items_total", "decoded")
			if third := getPods(t, r); &third[0] != &second[0] {
				t.Error("an idle list made a new listing")
			}
			if got := metric(t, r, "pleg_cri_listed_items_total",
				"decoded") - decoded; test.stub.chunk > 0 && got != 0 {
				t.Errorf("%v items were decoded again", got)
			}
		})
	}
}

// If only the runtime's version changes, the listing stays the same.
func TestRuntimeChangesItsVersion(t *testing.T) {
	client := node()
	client.chunk = 16
	r := newRuntime(client)
	first := getPods(t, r)
	client.version = "2.0"
	reconnect(t, r)
	if second := getPods(t, r); &second[0] != &first[0] {
		t.Error("another listing")
	}
}
