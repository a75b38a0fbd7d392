package cri

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// The labels and annotations that the kubelet sets on its containers and sandboxes.
const (
	labelPodUID            = "io.kubernetes.pod.uid"
	labelPodName           = "io.kubernetes.pod.name"
	labelPodNamespace      = "io.kubernetes.pod.namespace"
	labelContainerName     = "io.kubernetes.container.name"
	annotationHash         = "io.kubernetes.container.hash"
	annotationRestartCount = "io.kubernetes.container.restartCount"
)

// reading contains the settings for the conversion of listed items.
type reading struct {
	runtimeName string
	opts        *options
}

// shown is a listed item as GetPods returns it.
type shown struct {
	// The pod according to the labels or, with WithPodsByMetadata, according to a sandbox's
	// metadata.
	podUID       string
	podName      string
	podNamespace string
	// runtimeHandler is the sandbox's runtime handler; empty for a container.
	runtimeHandler string
	container      *pleg.Container
	bad            badSet
}

// object describes the item for the log.
func (s *shown) object(k kind) object {
	return object{
		kind: k, id: s.container.ID.ID,
		podUID: types.UID(s.podUID), podName: s.podName, podNamespace: s.podNamespace,
	}
}

// with adds kinds of bad data and returns the result.
func (s shown) with(found badSet) shown {
	s.bad |= found
	return s
}

// equal reports whether GetPods returns the same values for two items.
func (s *shown) equal(t *shown) bool {
	return sameContainer(s.container, t.container) &&
		s.podUID == t.podUID && s.podName == t.podName && s.podNamespace == t.podNamespace &&
		s.runtimeHandler == t.runtimeHandler && s.bad == t.bad
}

// showContainer converts a listed container.
func showContainer(c *runtimeapi.Container, by reading) shown {
	s := shownBy(c.GetLabels(), c.GetMetadata() != nil)
	state, known := containerState(c.GetState())
	if !known {
		s.bad = s.bad.with(badState)
	}
	hash, ok := parseHash(c.GetAnnotations()[annotationHash])
	if !ok {
		s.bad = s.bad.with(badHash)
	}
	s.container = &pleg.Container{
		ID:                  pleg.ContainerID{Type: by.runtimeName, ID: c.GetId()},
		Name:                cmp.Or(c.GetLabels()[labelContainerName], c.GetMetadata().GetName()),
		Image:               c.GetImage().GetImage(),
		ImageID:             imageID(c.GetImageId(), c.GetImageRef()),
		ImageRef:            c.GetImageRef(),
		ImageRuntimeHandler: c.GetImage().GetRuntimeHandler(),
		Hash:                hash,
		State:               state,
		PodSandboxID:        c.GetPodSandboxId(),
		CreatedAt:           c.GetCreatedAt(),
		Attempt:             c.GetMetadata().GetAttempt(),
		Labels:              c.GetLabels(),
		Annotations:         by.opts.keptAnnotations(c.GetAnnotations()),
	}
	return s
}

// showSandbox converts a listed sandbox to a container, as the kubelet does.
func showSandbox(p *runtimeapi.PodSandbox, by reading) shown {
	s := shownBy(p.GetLabels(), p.GetMetadata() != nil)
	if by.opts.byMetadata {
		s.belongTo(p.GetMetadata().GetUid(), "", "")
	}
	state, known := sandboxState(p.GetState())
	if !known {
		s.bad = s.bad.with(badState)
	}
	s.podName = cmp.Or(s.podName, p.GetMetadata().GetName())
	s.podNamespace = cmp.Or(s.podNamespace, p.GetMetadata().GetNamespace())
	s.runtimeHandler = p.GetRuntimeHandler()
	s.container = &pleg.Container{
		ID:          pleg.ContainerID{Type: by.runtimeName, ID: p.GetId()},
		State:       state,
		CreatedAt:   p.GetCreatedAt(),
		Attempt:     p.GetMetadata().GetAttempt(),
		Labels:      p.GetLabels(),
		Annotations: by.opts.keptAnnotations(p.GetAnnotations()),
	}
	return s
}

// shownBy converts the labels that containers and sandboxes have in common. Without
// WithPodsByMetadata, only the label decides to which pod an item belongs. A sandbox's metadata
// does not, because GetPod filters by the label, and full lists must agree with GetPod.
func shownBy(labels map[string]string, hasMetadata bool) shown {
	s := shown{
		podUID:       labels[labelPodUID],
		podName:      labels[labelPodName],
		podNamespace: labels[labelPodNamespace],
	}
	if s.podUID == "" {
		s.bad = s.bad.with(badNoPodUID)
	}
	if !hasMetadata {
		s.bad = s.bad.with(badNoMetadata)
	}
	return s
}

// belongTo assigns an item without the label to the given pod, unless podUID is empty.
func (s *shown) belongTo(podUID, podName, podNamespace string) {
	if s.podUID == "" && podUID != "" {
		s.podUID, s.podName, s.podNamespace = podUID, cmp.Or(s.podName, podName), cmp.Or(s.podNamespace, podNamespace)
		s.bad = s.bad.without(badNoPodUID)
	}
}

// imageID returns the ID of an image on the node. Some runtimes leave the field for the ID empty,
// and put the ID into the reference.
func imageID(id, ref string) string { return cmp.Or(id, ref) }

func containerState(s runtimeapi.ContainerState) (_ pleg.State, known bool) {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return pleg.ContainerStateCreated, true
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return pleg.ContainerStateRunning, true
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return pleg.ContainerStateExited, true
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return pleg.ContainerStateUnknown, true
	}
	return pleg.ContainerStateUnknown, false
}

func sandboxState(s runtimeapi.PodSandboxState) (_ pleg.State, known bool) {
	switch s {
	case runtimeapi.PodSandboxState_SANDBOX_READY:
		return pleg.ContainerStateRunning, true
	case runtimeapi.PodSandboxState_SANDBOX_NOTREADY:
		return pleg.ContainerStateExited, true
	}
	return pleg.ContainerStateUnknown, false
}

// parseHash parses the hash of a container's specification. The hash is 0 if s is empty.
func parseHash(s string) (hash uint64, ok bool) {
	if s == "" {
		return 0, true
	}
	hash, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0, false
	}
	return hash, true
}

// parseRestartCount parses a container's restart count, which the API declares as an int32.
func parseRestartCount(s string) (count int, ok bool) {
	if s == "" {
		return 0, true
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, false
	}
	return int(n), true
}

// age contains the values that decide the position of a container in its pod's list.
type age struct {
	name      string
	createdAt time.Time
	attempt   uint32
	id        string
}

// sortNewestFirst sorts containers by creation time, newest first; then by attempt, because
// cri-dockerd lists whole seconds; then by ID. Then containers of the same name swap positions, so
// that a higher attempt comes first even if the clock was set back. A single comparison by name,
// attempt and time would not be transitive.
func sortNewestFirst[T any](list []T, of func(T) age) {
	slices.SortFunc(list, func(x, y T) int {
		a, b := of(x), of(y)
		return cmp.Or(b.createdAt.Compare(a.createdAt), cmp.Compare(b.attempt, a.attempt), cmp.Compare(a.id, b.id))
	})
	byName := make(map[string][]T)
	for _, x := range list {
		name := of(x).name
		byName[name] = append(byName[name], x)
	}
	for _, named := range byName {
		slices.SortStableFunc(named, func(x, y T) int { return cmp.Compare(of(y).attempt, of(x).attempt) })
	}
	for i, x := range list {
		name := of(x).name
		list[i], byName[name] = byName[name][0], byName[name][1:]
	}
}

// makePod makes a pod from its items, and sorts them. Containers are sorted newest first. Sandboxes
// are sorted by attempt, highest first, then by creation time, newest first, then by ID.
func makePod(uid types.UID, sandboxes, containers []*item) *pleg.Pod {
	slices.SortFunc(sandboxes, func(a, b *item) int {
		return cmp.Or(
			cmp.Compare(b.container.Attempt, a.container.Attempt),
			cmp.Compare(b.container.CreatedAt, a.container.CreatedAt),
			cmp.Compare(a.container.ID.ID, b.container.ID.ID),
		)
	})
	sortNewestFirst(containers, func(it *item) age {
		c := it.container
		return age{c.Name, time.Unix(0, c.CreatedAt), c.Attempt, c.ID.ID}
	})
	pod := &pleg.Pod{
		ID:         uid,
		Sandboxes:  listed(sandboxes),
		Containers: listed(containers),
	}
	// The name is that of the newest sandbox or, without a sandbox, of the newest container.
	for _, of := range [...][]*item{sandboxes, containers} {
		if len(of) > 0 {
			pod.Name = cmp.Or(pod.Name, of[0].podName)
			pod.Namespace = cmp.Or(pod.Namespace, of[0].podNamespace)
		}
	}
	if len(sandboxes) > 0 {
		newest := sandboxes[0]
		pod.CreatedAt = uint64(max(newest.container.CreatedAt, 0))
		pod.Labels, pod.Annotations = newest.container.Labels, newest.container.Annotations
		pod.RuntimeHandler = newest.runtimeHandler
	}
	return pod
}

// listed returns the items' containers.
func listed(items []*item) []*pleg.Container {
	if len(items) == 0 {
		return nil
	}
	list := make([]*pleg.Container, len(items))
	for i, it := range items {
		list[i] = it.container
	}
	return list
}

// samePod reports whether two pods from makePod are equal. It does not compare the labels and
// annotations of the pods, because makePod copies them from the first sandbox.
func samePod(a, b *pleg.Pod) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Namespace == b.Namespace && a.CreatedAt == b.CreatedAt &&
		a.RuntimeHandler == b.RuntimeHandler &&
		slices.EqualFunc(a.Sandboxes, b.Sandboxes, sameContainer) &&
		slices.EqualFunc(a.Containers, b.Containers, sameContainer)
}

// sameContainer reports whether two listed containers or two listed sandboxes are equal.
func sameContainer(a, b *pleg.Container) bool {
	return a == b || a.ID == b.ID && a.State == b.State && a.Name == b.Name &&
		a.Image == b.Image && a.ImageID == b.ImageID && a.ImageRef == b.ImageRef &&
		a.ImageRuntimeHandler == b.ImageRuntimeHandler && a.Hash == b.Hash &&
		a.PodSandboxID == b.PodSandboxID && a.CreatedAt == b.CreatedAt && a.Attempt == b.Attempt &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}
