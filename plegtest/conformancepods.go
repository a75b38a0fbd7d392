package plegtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/crimessage"
)

// checkPods checks a list without comparing it with others. It returns the valid pods. A pod is
// valid if it is not nil and has a UID that no earlier pod has.
func (t *conformance) checkPods(call string, pods []*pleg.Pod) []*pleg.Pod {
	good := []*pleg.Pod{}
	known := make(map[types.UID]bool)
	owners := make(map[string]types.UID)
	for i, pod := range pods {
		switch {
		case pod == nil:
			t.problem(call, "pods", fmt.Sprintf("a nil one at index %d", i),
				"it is skipped and counted as bad data")
		case pod.ID == "":
			t.problem(call, "a UID for every pod", fmt.Sprintf("none for pod %s/%s", pod.Namespace,
				pod.Name), "a pod without UID cannot be identified, and is skipped")
		case known[pod.ID]:
			t.problem(call, "each UID once", fmt.Sprintf("%q again at index %d", pod.ID, i),
				"only the first is used")
		default:
			known[pod.ID] = true
			good = append(good, pod)
			t.checkPod(fmt.Sprintf("%s: pod %q", call, pod.ID), pod, owners)
		}
	}
	return good
}

func (t *conformance) checkPod(where string, pod *pleg.Pod, owners map[string]types.UID) {
	for _, c := range slices.Concat(pod.Containers, pod.Sandboxes) {
		switch {
		case c == nil:
			t.problem(where, "containers", "a nil one", "it is skipped and counted as bad data")
			continue
		case c.ID.ID == "":
			t.problem(where, "an ID for every container and sandbox",
				fmt.Sprintf("none for container %q", c.Name), "it cannot be identified, and is skipped")
			continue
		}
		if owner, taken := owners[c.ID.ID]; taken {
			t.problem(where, "each container and sandbox ID once on the whole node",
				fmt.Sprintf("%s, which is in pod %q too", c.ID.ID, owner),
				"an event carries the ID only, and the second one is skipped")
		}
		owners[c.ID.ID] = pod.ID
		t.checkState(where, c.ID.ID, c.State)
	}
}

// checkOrder checks the order of containers and sandboxes of a pod in a full list. Lists of running
// containers may use another order.
func (t *conformance) checkOrder(where string, pod *pleg.Pod) {
	var aged []age
	for _, c := range pod.Containers {
		if c != nil && c.CreatedAt != 0 {
			aged = append(aged, age{c.Name, c.ID.ID, c.Attempt, time.Unix(0, c.CreatedAt)})
		}
	}
	t.checkNewestFirst(where, "the containers", aged)
	for i := 1; i < len(pod.Sandboxes); i++ {
		older, newer := pod.Sandboxes[i], pod.Sandboxes[i-1]
		if older != nil && newer != nil && cmp.Or(cmp.Compare(older.Attempt, newer.Attempt),
			cmp.Compare(older.CreatedAt, newer.CreatedAt)) > 0 {
			t.problem(where, "the sandboxes newest first",
				fmt.Sprintf("%s after %s, which is older", older.ID.ID, newer.ID.ID),
				"the first one counts as the present one: its addresses are the pod's")
		}
	}
}

// age contains the values that decide a container's position in its pod's list.
type age struct {
	name, id  string
	attempt   uint32
	createdAt time.Time
}

// checkNewestFirst checks that containers are sorted by time, newest first. Containers of the same
// name must be sorted by attempt, then by time. If the clock was set back, a newer attempt may have
// an older time. Then the times decide which positions the containers of a name occupy, and the
// attempts decide their order in these positions.
func (t *conformance) checkNewestFirst(where, what string, list []age) {
	byTime := slices.Clone(list)
	slices.SortFunc(byTime, func(a, b age) int { return b.createdAt.Compare(a.createdAt) })
	times := make(map[string][]time.Time)
	for _, c := range byTime {
		times[c.name] = append(times[c.name], c.createdAt)
	}
	var placeBefore time.Time
	newer := make(map[string]age) // by name, the container that came last in list so far
	for i, c := range list {
		place := times[c.name][0]
		times[c.name] = times[c.name][1:]
		n, known := newer[c.name]
		older := ""
		switch {
		case known && cmp.Or(cmp.Compare(n.attempt, c.attempt), n.createdAt.Compare(c.createdAt)) < 0:
			older = n.id
		case i > 0 && placeBefore.Before(place):
			older = list[i-1].id
		}
		if older != "" {
			t.problem(where, what+" newest first", fmt.Sprintf("%s after %s, which is older", c.id, older), whyNewestFirst)
		}
		newer[c.name], placeBefore = c, place
	}
}

// whyNewestFirst explains in problems why the order of containers matters.
const whyNewestFirst = "the first container of a name counts as the present one:" +
	" a consumer that takes its predecessor restarts it again and again"

func (t *conformance) checkState(where, id string, s pleg.State) {
	switch s {
	case pleg.ContainerStateCreated, pleg.ContainerStateRunning,
		pleg.ContainerStateExited, pleg.ContainerStateUnknown:
	default:
		t.problem(where, "one of the states created, running, exited, unknown", fmt.Sprintf("%q for %s", s, id),
			"it is read as unknown and counted as bad data, and the container has no events")
	}
}

// testStatuses inspects every listed pod, and also a pod that does not exist.
func (t *conformance) testStatuses(pods []*pleg.Pod) {
	for _, pod := range pods {
		t.testStatus(pod)
		exited := func(c *pleg.Container) bool { return c != nil && c.State == pleg.ContainerStateExited }
		if slices.ContainsFunc(pod.Containers, exited) {
			t.testStatus(pod) // a second status must report the same FinishedAt
		}
	}
	t.testGoneContainer(pods)
	const call = "GetPodStatus of a pod that does not exist"
	a := ask(t, call, func(ctx context.Context) (*pleg.PodStatus, error) {
		return t.rt.GetPodStatus(ctx, &pleg.Pod{
			ID: noSuchPod, Name: "gone", Namespace: "default",
			Containers: []*pleg.Container{{ID: pleg.ContainerID{ID: "gone"},
				State: pleg.ContainerStateRunning}},
			Sandboxes: []*pleg.Container{{ID: pleg.ContainerID{ID: "gone-sandbox"},
				State: pleg.ContainerStateRunning}},
		})
	})
	switch {
	case !a.ok || a.err != nil:
	case a.value == nil:
		t.problem(call, "an error, or a status without containers", "nil and no error",
			"a nil status is bad data")
	case len(a.value.ContainerStatuses) > 0:
		t.problem(call, "an error, or a status without containers",
			fmt.Sprintf("%d containers", len(a.value.ContainerStatuses)),
			"a container that is gone is left out of the status")
	}
}

// testGoneContainer inspects a pod whose list includes a container that no longer exists. It tests
// only the pod with the most containers.
func (t *conformance) testGoneContainer(pods []*pleg.Pod) {
	if len(pods) == 0 {
		return
	}
	pod := *slices.MaxFunc(pods, func(a, b *pleg.Pod) int { return len(a.Containers) - len(b.Containers) })
	gone := &pleg.Container{ID: pleg.ContainerID{ID: noSuchContainer}, Name: "gone", State: pleg.ContainerStateRunning}
	for _, c := range slices.Concat(pod.Containers, pod.Sandboxes) {
		if c != nil {
			gone.ID.Type = c.ID.Type
		}
	}
	if len(pod.Sandboxes) > 0 && pod.Sandboxes[0] != nil {
		gone.PodSandboxID = pod.Sandboxes[0].ID.ID
	}
	there := len(pod.Containers)
	pod.Containers = append(slices.Clip(pod.Containers), gone)
	call := fmt.Sprintf("GetPodStatus(pod %q) with a container that is gone since the list", pod.ID)
	a := ask(t, call, func(ctx context.Context) (*pleg.PodStatus, error) { return t.rt.GetPodStatus(ctx, &pod) })
	const expected = "no error, and a status without that container"
	const why = "containers often go between list and inspection, and the others must keep their statuses"
	switch {
	case !a.ok:
	case a.err != nil:
		t.problem(call, expected, quoted(a.err), why)
	case a.value == nil:
		t.problem(call, expected, "nil and no error", why)
	case slices.ContainsFunc(a.value.ContainerStatuses,
		func(s *pleg.Status) bool { return s != nil && s.ID.ID == noSuchContainer }):
		t.problem(call, expected, "a status of it", "a container that is gone is left out of the status")
	case len(a.value.ContainerStatuses) < there:
		t.problem(call, fmt.Sprintf("the statuses of the %d others", there),
			fmt.Sprint(len(a.value.ContainerStatuses)), why)
	}
}

// checkFinished checks that FinishedAt of a container is the same as in an earlier status.
func (t *conformance) checkFinished(call string, s *pleg.Status) {
	t.mu.Lock()
	earlier, known := t.finished[s.ID.ID]
	t.finished[s.ID.ID] = s.FinishedAt
	t.mu.Unlock()
	if known && !earlier.Equal(s.FinishedAt) {
		// The problem does not include the times, so that each container is reported only once.
		t.problem(call, "the same FinishedAt of an exited container each time",
			"a different one for "+s.ID.ID,
			"the back-off of restarts begins at that time, and must not begin again")
	}
}

func (t *conformance) testStatus(pod *pleg.Pod) {
	call := fmt.Sprintf("GetPodStatus(pod %q)", pod.ID)
	a := ask(t, call, func(ctx context.Context) (*pleg.PodStatus, error) { return t.rt.GetPodStatus(ctx, pod) })
	switch {
	case !a.ok:
	case a.err != nil:
		t.problem(call, "no error for a pod that is listed", quoted(a.err),
			"the inspection is retried, and readers get the error")
	case a.value == nil:
		t.problem(call, "a status", "nil and no error",
			"a nil status is bad data; an inspection that fails must return an error")
	default:
		t.keepStatus(call, a.value)
		t.checkStatus(call, pod, a.value)
	}
}

func (t *conformance) checkStatus(call string, pod *pleg.Pod, status *pleg.PodStatus) {
	if status.ID != "" && status.ID != pod.ID {
		t.problem(call, fmt.Sprintf("ID %q", pod.ID), fmt.Sprintf("%q", status.ID),
			"a status of another pod is bad data, and is not stored")
	}
	if status.Name != pod.Name || status.Namespace != pod.Namespace {
		t.problem(call, fmt.Sprintf("the name %s/%s, as in the list", pod.Namespace, pod.Name),
			fmt.Sprintf("%s/%s", status.Namespace, status.Name),
			"logs and reports must show one name for the pod")
	}
	last := -1 // index in Pod.Containers of the container with the previous status
	var before *pleg.Status
	var aged []age
	for _, s := range status.ContainerStatuses {
		if s == nil {
			t.problem(call, "container statuses", "a nil one",
				"every reader of the cache would have to check for nil")
			continue
		}
		t.checkState(call, s.ID.ID, s.State)
		i := slices.IndexFunc(pod.Containers,
			func(c *pleg.Container) bool { return c != nil && c.ID.ID == s.ID.ID })
		switch {
		case i < 0:
			t.problem(call, "statuses of the containers that are listed",
				fmt.Sprintf("one of %q, which is not", s.ID.ID),
				"consumers find the container of an event in the status by its ID")
			continue
		case i < last && (before == nil || before.CreatedAt.Equal(s.CreatedAt)):
			t.problem(call, "the statuses of one time in the order of Pod.Containers",
				fmt.Sprintf("%q out of it", s.ID.ID), "a run is not reproducible")
		}
		last = i
		if c := pod.Containers[i]; c.Name != s.Name || c.State != s.State {
			t.problem(call, fmt.Sprintf("container %s named %q and %s, as in the list", s.ID.ID, c.Name,
				c.State), fmt.Sprintf("%q and %s", s.Name, s.State),
				"list and status must agree; if the node was not quiet, test on one that is")
		}
		if !s.CreatedAt.IsZero() {
			aged = append(aged, age{s.Name, s.ID.ID, pod.Containers[i].Attempt, s.CreatedAt})
			before = s
		}
		if listed := pod.Containers[i].ID; listed.Type != s.ID.Type {
			t.problem(call, "the container's ID as in the list, "+listed.String(), s.ID.String(),
				"consumers look up the container of an event by its ContainerID")
		}
		switch {
		case s.State != pleg.ContainerStateExited:
		case s.FinishedAt.IsZero():
			t.problem(call, "FinishedAt of an exited container", "none for "+s.ID.ID,
				"the back-off of restarts begins at that time")
		case s.StartedAt.Sub(s.FinishedAt) >= startTakes:
			t.problem(call, "FinishedAt of an exited container after its StartedAt", "an earlier one for "+s.ID.ID,
				"how long it ran decides its back-off")
			fallthrough
		default:
			t.checkFinished(call, s)
		}
	}
	t.checkNewestFirst(call, "the container statuses", aged)
	if len(status.ContainerStatuses) < len(pod.Containers) {
		t.problem(call, fmt.Sprintf("a status for each of the %d listed containers", len(pod.Containers)),
			fmt.Sprint(len(status.ContainerStatuses)),
			"what is missing counts as removed; if the node was not quiet, test on one that is")
	}
	t.checkActive(call, pod, status)
	t.checkSandboxes(call, pod, status)
}

// checkActive checks ActiveContainerStatuses. If the newest sandbox is ready, the list must contain
// the statuses of this sandbox's containers, in the same order. Otherwise the list must be empty.
func (t *conformance) checkActive(call string, pod *pleg.Pod, status *pleg.PodStatus) {
	if len(pod.Sandboxes) == 0 || pod.Sandboxes[0] == nil {
		return
	}
	ready := pod.Sandboxes[0].State == pleg.ContainerStateRunning
	var want, got []string
	for _, s := range status.ContainerStatuses {
		if s == nil || !ready {
			continue
		}
		if i := indexOf(pod.Containers, s.ID.ID); i >= 0 && pod.Containers[i].PodSandboxID == pod.Sandboxes[0].ID.ID {
			want = append(want, s.ID.ID)
		}
	}
	for _, s := range status.ActiveContainerStatuses {
		if s != nil {
			got = append(got, s.ID.ID)
		}
	}
	if !slices.Equal(want, got) {
		t.problem(call,
			fmt.Sprintf("ActiveContainerStatuses of the newest sandbox's containers if it is ready, %q",
				want),
			fmt.Sprintf("%q", got),
			"they are what the pod runs at present, and consumers act on them")
	}
}

func (t *conformance) checkSandboxes(call string, pod *pleg.Pod, status *pleg.PodStatus) {
	var before *runtimeapi.PodSandboxStatus
	for _, s := range status.SandboxStatuses {
		if s == nil {
			t.problem(call, "sandbox statuses", "a nil one",
				"every reader of the cache would have to check for nil")
			continue
		}
		if indexOf(pod.Sandboxes, s.Id) < 0 {
			t.problem(call, "statuses of the sandboxes that are listed",
				fmt.Sprintf("one of %q, which is not", s.Id),
				"consumers find the sandbox of an event in the status by its ID")
		}
		if before != nil && cmp.Or(cmp.Compare(before.GetMetadata().GetAttempt(), s.GetMetadata().GetAttempt()),
			cmp.Compare(before.CreatedAt, s.CreatedAt)) < 0 {
			t.problem(call, "the sandbox statuses newest first",
				fmt.Sprintf("%s after %s, which is older", s.Id, before.Id),
				"the first one counts as the present one: its addresses are the pod's")
		}
		before = s
	}
	if len(status.SandboxStatuses) > 0 {
		newest := status.SandboxStatuses[0]
		ready, ip := newest.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY, newest.GetNetwork().GetIp()
		if ready && net.ParseIP(ip) != nil && !slices.Contains(status.IPs, ip) {
			t.problem(call, "the newest sandbox's address "+ip+" in IPs", fmt.Sprintf("%q", status.IPs),
				"PodCache.ByIP would not find the pod")
		}
	}
	if n := len(status.SandboxStatuses); n > 0 && n < len(pod.Sandboxes) {
		t.problem(call, fmt.Sprintf("a status for each of the %d listed sandboxes, or none", len(pod.Sandboxes)),
			fmt.Sprint(len(status.SandboxStatuses)),
			"what is missing counts as removed; if the node was not quiet, test on one that is")
	}
}

// testPodGetter calls GetPod for every listed pod, and for a pod that does not exist.
func (t *conformance) testPodGetter(pods []*pleg.Pod) {
	getter, ok := t.rt.(pleg.PodGetter)
	if !ok {
		return
	}
	for _, pod := range pods {
		t.testGetPod(getter, pod)
	}
	const call = "GetPod of a pod that does not exist"
	a := ask(t, call, func(ctx context.Context) (*pleg.Pod, error) { return getter.GetPod(ctx, noSuchPod) })
	if a.ok && !errors.Is(a.err, pleg.ErrPodNotFound) {
		seen := "a pod"
		switch {
		case a.err != nil:
			seen = quoted(a.err)
		case a.value == nil:
			seen = "nil and no error"
		}
		t.problem(call, "an error that wraps ErrPodNotFound", seen,
			"absence is an answer: without it a reader of a removed pod waits for the next full list")
	}
}

func (t *conformance) testGetPod(getter pleg.PodGetter, pod *pleg.Pod) {
	call := fmt.Sprintf("GetPod(%q)", pod.ID)
	a := ask(t, call, func(ctx context.Context) (*pleg.Pod, error) { return getter.GetPod(ctx, pod.ID) })
	switch {
	case !a.ok:
	case a.err != nil:
		t.problem(call, "the pod, which GetPods lists", quoted(a.err),
			"the pod list fails, or, after ErrPodNotFound, the pod counts as removed")
	case a.value == nil:
		t.problem(call, "a pod", "nil and no error", "a nil pod is bad data; absence is ErrPodNotFound")
	default:
		t.keepPod(call, a.value)
		if diff := podDifference(pod, a.value); diff != "" {
			t.problem(call, "the pod as GetPods lists it, exited containers too", diff,
				"the generator compares both kinds of listing, and takes each difference for a change")
		}
	}
}

// podDifference describes the first difference between two listings of a pod, or returns "" if they
// are equal. It ignores Source, which may contain any value.
func podDifference(want, got *pleg.Pod) string {
	a, b := reflect.ValueOf(toCompare(want)), reflect.ValueOf(toCompare(got))
	for i := range a.NumField() {
		was, is := a.Field(i).Interface(), b.Field(i).Interface()
		if reflect.DeepEqual(was, is) {
			continue
		}
		name := a.Type().Field(i).Name
		if before, now := shown(was), shown(is); before != now {
			return fmt.Sprintf("%s %s instead of %s", name, now, before)
		}
		if name == "Containers" || name == "Sandboxes" {
			name = "labels or annotations of " + name
		}
		return "other " + name
	}
	return ""
}

// toCompare returns a copy of a pod for a comparison. The copy contains no Source, and empty maps
// are nil.
func toCompare(pod *pleg.Pod) pleg.Pod {
	clone := clonePod(pod)
	clone.Source = nil
	all := []*map[string]string{&clone.Labels, &clone.Annotations}
	for _, c := range slices.Concat(clone.Containers, clone.Sandboxes) {
		if c != nil {
			c.Source = nil
			all = append(all, &c.Labels, &c.Annotations)
		}
	}
	for _, m := range all {
		if len(*m) == 0 {
			*m = nil
		}
	}
	return *clone
}

// shown returns a field of a pod in a readable form. For labels and annotations, the result
// contains only their number, because their texts may be long or secret.
func shown(v any) string {
	switch v := v.(type) {
	case map[string]string:
		return fmt.Sprintf("(%d)", len(v))
	case []*pleg.Container:
		out := make([]string, 0, len(v))
		for _, c := range v {
			if c == nil {
				continue
			}
			own := *c
			own.Labels, own.Annotations = nil, nil
			out = append(out, fmt.Sprintf("%+v", own))
		}
		return strings.Join(out, " ")
	}
	return fmt.Sprintf("%v", v)
}

// keepPod stores a copy of a pod that the runtime returned, for testUnmodified.
func (t *conformance) keepPod(what string, pod *pleg.Pod) {
	if pod == nil {
		return
	}
	was := clonePod(pod)
	t.keep(fmt.Sprintf("%s: pod %q", what, pod.ID), func() bool { return podDifference(was, pod) == "" })
}

// keepStatus stores a copy of a status that the runtime returned, for testUnmodified.
func (t *conformance) keepStatus(what string, status *pleg.PodStatus) {
	was := *status
	was.IPs = slices.Clone(status.IPs)
	was.ContainerStatuses = make([]*pleg.Status, len(status.ContainerStatuses))
	for i, s := range status.ContainerStatuses {
		if s != nil {
			copied := *s
			was.ContainerStatuses[i] = &copied
		}
	}
	was.SandboxStatuses = make([]*runtimeapi.PodSandboxStatus, len(status.SandboxStatuses))
	for i, s := range status.SandboxStatuses {
		if s != nil {
			was.SandboxStatuses[i] = crimessage.Clone(s)
		}
	}
	t.keep(what, func() bool { return sameStatus(status, &was) })
}

func (t *conformance) keep(what string, same func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.returned = append(t.returned, returned{what, same})
}

func sameStatus(a, b *pleg.PodStatus) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Namespace == b.Namespace && slices.Equal(a.IPs, b.IPs) &&
		slices.EqualFunc(a.ContainerStatuses, b.ContainerStatuses, sameContainerStatus) &&
		slices.EqualFunc(a.SandboxStatuses, b.SandboxStatuses,
			func(a, b *runtimeapi.PodSandboxStatus) bool { return crimessage.Equal(a, b) })
}

// sameContainerStatus compares two statuses except for Source and the protobuf messages. A read may
// change the internal state of a protobuf message.
func sameContainerStatus(a, b *pleg.Status) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Resources, y.Resources = nil, nil
	x.User, y.User = nil, nil
	x.Mounts, y.Mounts = nil, nil
	x.Source, y.Source = nil, nil
	return reflect.DeepEqual(x, y)
}
