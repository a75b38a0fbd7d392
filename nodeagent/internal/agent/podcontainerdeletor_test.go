package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/nodeagent/internal/podtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// instances returns the status of a pod with these containers, newest first. Their IDs end in their
// places.
func instances(containers ...string) *pleg.PodStatus {
	s := &pleg.PodStatus{}
	for i, text := range containers {
		c := podtest.Status(text)
		c.ID.ID += fmt.Sprint(i)
		s.ContainerStatuses = append(s.ContainerStatuses, c)
	}
	return s
}

// The newest dead instances of each container stay, and every instance that runs or is about to run.
func TestGetContainersToDeleteInPod(t *testing.T) {
	for _, c := range []struct {
		status *pleg.PodStatus
		keep   int
		want   string
	}{
		{instances("a running", "a 1", "a 2", "b 0", "a 3"), 1, "a2 a4"},
		{instances("a running", "a 1", "a 2", "b 0", "a 3"), 2, "a4"},
		{instances("a running", "a 1", "a 2", "b 0", "a 3"), 0, "a1 a2 b3 a4"},
		{instances("a 1", "b 0"), 1, ""},
		{instances("a created", "a 1"), 1, ""},
		{instances("a running", "a created", "a unknown"), 1, "a1"},
	} {
		var ids []string
		for _, s := range getContainersToDeleteInPod(c.status, c.keep) {
			ids = append(ids, s.ID.ID)
		}
		if got := strings.Join(ids, " "); got != c.want {
			t.Errorf("keeping %d: %q, want %q", c.keep, got, c.want)
		}
	}
}

// Containers are removed one after another, and each only once. The caller never waits. If more than
// 50 containers wait, the others stay until the next call.
func TestPodContainerDeletor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var removed []string
		d := newPodContainerDeletor(func(_ context.Context, d deletion) error {
			time.Sleep(time.Second)
			removed = append(removed, d.container.ID.ID)
			return errOnPurpose // a failure changes nothing
		}, maxContainers, klog.Logger{})
		go d.run(t.Context())
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		pod := &v1.Pod{}
		few := instances("a running", "a 1", "a 2", "b 0")
		d.deleteContainersInPod(pod, few, false)
		d.deleteContainersInPod(pod, few, false)
		synctest.Wait()
		d.deleteContainersInPod(pod, few, false) // while the removal is in progress
		wait(time.Minute)
		if want := []string{"a2"}; !slices.Equal(removed, want) {
			t.Errorf("removed %q, want %q", removed, want)
		}
		d.deleteContainersInPod(pod, few, false) // the status is old, or the removal has failed
		wait(time.Minute)
		if want := []string{"a2", "a2"}; !slices.Equal(removed, want) {
			t.Errorf("removed %q, want %q", removed, want)
		}
		removed = nil
		d.deleteContainersInPod(pod, few, true)
		wait(time.Minute)
		if want := []string{"a0", "a1", "a2", "b3"}; !slices.Equal(removed, want) {
			t.Errorf("removed %q, want %q", removed, want)
		}
		removed = nil
		began := time.Now()
		many := instances(slices.Repeat([]string{"a 1"}, 60)...)
		d.deleteContainersInPod(pod, many, true)
		if took := time.Since(began); took != 0 {
			t.Errorf("the caller waited %v", took)
		}
		wait(time.Hour)
		// One more may have been in progress.
		if n := len(removed); n != containerDeletorBufferLimit && n != containerDeletorBufferLimit+1 {
			t.Errorf("%d containers were removed", n)
		}
		many.ContainerStatuses = many.ContainerStatuses[len(removed):]
		d.deleteContainersInPod(pod, many, true)
		wait(time.Hour)
		if !slices.Contains(removed, "a59") {
			t.Error("the last container was never removed")
		}
	})
}

// While the removal of a dead container is stuck, its pod and other pods run on, and dead containers
// restart. An unwanted pod waits for the removal of its containers.
func TestStuckRemoval(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.run(time.Second, n.pod("a", always),
			n.pod("b", "  containers: [{name: c, image: sleep, imagePullPolicy: Never}]\n"))
		heal := n.server.Inject(criserver.Fault{Method: "RemoveContainer", Block: true})
		for range 2 { // the second death leaves an instance to remove
			n.kill("web")
			n.wait(15 * time.Second)
		}
		n.want("a", "Running Ready; web 2 running after Error(137)")
		n.kill("c")
		n.wait(time.Second)
		n.want("b", "Running Ready; c 1 running after Error(137)")
		if _, containers := n.server.Present(); containers != 5 {
			t.Errorf("%d containers", containers)
		}
		n.run(10*time.Second, n.pod("a", always))
		if _, containers := n.server.Present(); containers != 5 {
			t.Errorf("%d containers", containers)
		}
		heal()
		n.wait(3 * time.Minute)
		if sandboxes, containers := n.server.Present(); sandboxes != 1 || containers != 2 {
			t.Errorf("%d sandboxes and %d containers are left", sandboxes, containers)
		}
	})
}
