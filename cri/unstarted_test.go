package cri_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// dockerNode returns a node of cri-dockerd with the pod "other".
func dockerNode() *stub {
	return &stub{name: "docker", chunk: 100, sandboxes: []*runtimeapi.PodSandbox{sandbox("o", "other")}}
}

// showSandbox sets how the node lists the sandbox "s" of the pod "uid": as "ready", "down", "used"
// or "gone". down and used are not ready, and used has a container.
func (s *stub) showSandbox(as string) {
	s.sandboxes, s.containers = s.sandboxes[:1:1], nil
	if as == "gone" {
		return
	}
	box := sandbox("s", "uid")
	if as != "ready" {
		box.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	s.sandboxes = append(s.sandboxes, box)
	if as == "used" {
		c := container("c", "uid")
		c.PodSandboxId = "s"
		s.containers = append(s.containers, c)
	}
}

// If cri-dockerd lists a sandbox as not ready, the sandbox's state is unknown at first. The state
// is known after a full list or a pod list has shown the sandbox ready or with a container.
func TestUnstartedSandboxes(t *testing.T) {
	for _, test := range []struct {
		name, runtime string
		// steps contains for each list: the call, the argument of showSandbox, and the expected
		// state.
		steps []string
	}{
		{"full lists", "docker", []string{
			"GetPods down unknown", "GetPods ready running", "GetPods down exited"}},
		{"lists of the pod", "docker", []string{
			"GetPod down unknown", "GetPod ready running", "GetPod down exited"}},
		{"a container", "docker", []string{
			"GetPods down unknown", "GetPods used exited", "GetPods down exited"}},
		{"a container in lists of the pod", "docker", []string{
			"GetPod down unknown", "GetPod used exited", "GetPod down exited"}},
		{"ready in a list of the pod only", "docker", []string{
			"GetPods down unknown", "GetPod ready running", "GetPods down exited", "GetPod down exited"}},
		{"a container in a list of the pod only", "docker", []string{
			"GetPods down unknown", "GetPod used exited", "GetPods down exited"}},
		{"ready before the first full list", "docker", []string{
			"GetPod ready running", "GetPods down exited"}},
		{"ready in a full list only", "docker", []string{
			"GetPods ready running", "GetPod down exited", "GetPods down exited"}},
		{"never ready", "docker", []string{
			"GetPods down unknown", "GetPod down unknown", "GetPods down unknown", "GetPods gone absent"}},
		{"another runtime", "containerd", []string{
			"GetPods down exited", "GetPod down exited", "GetPods ready running"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := dockerNode()
			node.name = test.runtime
			r := newRuntime(node, quiet)
			for i, s := range test.steps {
				step := strings.Fields(s)
				node.showSandbox(step[1])
				got := "absent"
				if step[0] == "GetPod" {
					pod, err := r.GetPod(t.Context(), "uid")
					must(t, err)
					got = string(pod.Sandboxes[0].State)
				} else if pods := getPods(t, r); len(pods) == 2 {
					got = string(pods[1].Sandboxes[0].State)
					again, err := r.GetPod(t.Context(), "uid")
					if must(t, err); again != pods[1] || &getPods(t, r)[0] != &pods[0] {
						t.Errorf("after step %d, %s: nothing has changed but the pods", i, s)
					}
				}
				if got != step[2] {
					t.Errorf("step %d, %s: the sandbox is %s", i, s, got)
				}
			}
		})
	}
}

// A sandbox that is gone is forgotten. A sandbox that is created and started during a full list is
// remembered as started, even if the list does not contain it.
func TestStartedSandboxesAreForgotten(t *testing.T) {
	node := dockerNode()
	r := newRuntime(node, quiet)
	getPods(t, r)
	full := true
	node.hook = func(_ context.Context, method string) error {
		if method == "ListContainers" && full {
			full = false
			node.showSandbox("ready")
			_, err := r.GetPod(t.Context(), "uid")
			return err
		}
		return nil
	}
	if pods := getPods(t, r); len(pods) != 1 {
		t.Fatalf("the full list has the sandbox: %v", pods)
	}
	node.showSandbox("down")
	if got := getPods(t, r)[1].Sandboxes[0].State; got != pleg.ContainerStateExited {
		t.Errorf("the sandbox is %s", got)
	}
	node.showSandbox("gone")
	getPods(t, r)
	if got := cri.Started(r); got != 1 {
		t.Errorf("%d sandboxes are remembered, and 1 exists", got)
	}

	node.showSandbox("ready") // exists only between two full lists
	_, err := r.GetPod(t.Context(), "uid")
	must(t, err)
	node.showSandbox("gone")
	getPods(t, r)
	if got := cri.Started(r); got != 1 {
		t.Errorf("%d sandboxes are remembered, and 1 exists", got)
	}
}

// A sandbox that has not been started causes no events, and is inspected only once.
func TestEventsOfUnstartedSandbox(t *testing.T) {
	node := dockerNode()
	asked := 0
	node.sandboxStatus = func(_ context.Context, req *sandboxStatusRequest) (*sandboxStatusResponse, error) {
		i := slices.IndexFunc(node.sandboxes, func(s *runtimeapi.PodSandbox) bool { return s.Id == req.PodSandboxId })
		if req.PodSandboxId == "s" {
			asked++
		}
		return &sandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: req.PodSandboxId, State: node.sandboxes[i].State}}, nil
	}
	clock := clocktesting.NewFakeClock(time.Now())
	g := pleg.NewGenericPLEG(newRuntime(node, quiet), 100, time.Second, pleg.NewCache(), clock,
		pleg.WithLogger(logr.Discard()), pleg.WithPollingOnly())
	events := g.Watch()
	for _, step := range []struct {
		shows string
		want  []string
	}{
		{"down", nil},
		{"ready", []string{"s ContainerStarted"}},
		{"down", []string{"s ContainerDied"}},
	} {
		node.showSandbox(step.shows)
		asked = 0
		for range 3 {
			must(t, g.Relist(t.Context()))
			clock.Step(time.Minute)
		}
		if asked != 1 {
			t.Errorf("%s: %d inspections", step.shows, asked)
		}
		var got []string
		for len(events) > 0 {
			if e := <-events; e.ID == "uid" {
				got = append(got, fmt.Sprint(e.Data, " ", e.Type))
			}
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %q", step.shows, got)
		}
	}
}
