package pleg

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cacheIndex finds pods by container ID, name and address. It keeps a key for one minute after the pod
// has lost it. The time of a look-up does not depend on the number of pods. PodCache.mu guards the index.
type cacheIndex struct {
	// pods maps each key to its pods. The goneKey is nil for a pod with the key, and set for a pod that has lost it.
	pods map[indexKey]map[types.UID]*goneKey
	// gone contains the keys that pods have lost, oldest first.
	gone []*goneKey
	now  time.Time  // zero without a generator; lost keys are then not kept
	keys []indexKey // a buffer for the method replace
}

// goneKey is a key that a pod has lost. status is the pod's last status with the key, with GoneAt set.
type goneKey struct {
	indexKey
	status *PodStatus
}

// A lost key is kept for goneTime. At most maxGone are kept.
const (
	goneTime = time.Minute
	maxGone  = 20_000
)

// indexKey is a container ID, a name or an address.
type indexKey struct {
	kind      indexKind
	namespace string // set for indexName only
	value     string
}

type indexKind uint8

const (
	indexContainer indexKind = iota // the full ID of a container or sandbox, or its start
	indexName
	indexIP // an address in canonical form
)

func containerKey(id string) indexKey { return indexKey{indexContainer, "", id} }

func shortKey(id string) indexKey { return containerKey(id[:min(len(id), shortestID)]) }

// replace computes the keys of a pod's new entry e, updates the index, and returns the keys. "was"
// is the pod's old entry. For most pods, the keys stay the same.
func (x *cacheIndex) replace(uid types.UID, e, was *cacheEntry) []indexKey {
	x.keys = appendKeys(x.keys[:0], e.listed, e.status)
	if slices.Equal(was.keys, x.keys) {
		return was.keys
	}
	now := slices.Clone(x.keys)
	kept := make(map[indexKey]bool, len(now))
	for _, key := range now {
		kept[key] = true
		if x.pods[key] == nil {
			put(&x.pods, key, make(map[types.UID]*goneKey))
		}
		x.pods[key][uid] = nil
	}
	var last *PodStatus
	if !x.now.IsZero() {
		copied := *was.withListed(uid)
		copied.GoneAt, last = x.now, &copied
	}
	for _, key := range was.keys {
		switch {
		case kept[key] || x.pods[key][uid] != nil: // already marked as lost if was.keys repeats the key
		case last == nil:
			x.remove(key, uid)
		default:
			went := &goneKey{key, last}
			x.pods[key][uid] = went
			x.gone = append(x.gone, went)
		}
	}
	x.advance(x.now)
	return now
}

// advance sets the current time, and deletes lost keys according to goneTime and maxGone.
func (x *cacheIndex) advance(now time.Time) {
	x.now = now
	for len(x.gone) > maxGone || len(x.gone) > 0 && now.Sub(x.gone[0].status.GoneAt) > goneTime {
		first := x.gone[0]
		x.gone[0] = nil
		x.gone = x.gone[1:]
		if uid := first.status.ID; x.pods[first.indexKey][uid] == first {
			x.remove(first.indexKey, uid)
		}
	}
	if len(x.gone) == 0 {
		x.gone = nil // frees the memory after many losses at once
	}
}

func (x *cacheIndex) remove(key indexKey, uid types.UID) {
	delete(x.pods[key], uid)
	if len(x.pods[key]) == 0 {
		delete(x.pods, key)
	}
}

// appendKeys appends the keys of a listed pod and of its status; either may be nil. Keys may repeat.
func appendKeys(keys []indexKey, listed *Pod, status *PodStatus) []indexKey {
	add := func(key indexKey) {
		if key.value != "" {
			keys = append(keys, key)
		}
	}
	addID := func(id string) {
		add(containerKey(id))
		add(shortKey(id))
	}
	for _, c := range itemsOf(listed) {
		addID(c.ID.ID)
	}
	if listed != nil {
		add(indexKey{indexName, listed.Namespace, listed.Name})
	}
	if status == nil {
		return keys
	}
	for _, s := range status.ContainerStatuses {
		addID(s.id())
	}
	for _, s := range status.SandboxStatuses {
		addID(s.GetId())
	}
	add(indexKey{indexName, status.Namespace, status.Name})
	for _, ip := range status.IPs {
		add(indexKey{indexIP, "", canonicalIP(ip)})
	}
	return keys
}

// canonicalIP returns the canonical form of an address. Other strings are returned unchanged.
func canonicalIP(ip string) string {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.Is4() { // IPv4 has only one form
		return ip
	}
	return addr.Unmap().String()
}

// fullID returns the full ID of the container or sandbox if id is that ID or its beginning; "" if there is none.
func (s *PodStatus) fullID(id string) string {
	if c := s.FindContainerStatusByID(id); c != nil {
		return c.ID.ID
	}
	is := func(sandbox *runtimeapi.PodSandboxStatus) bool { return isID(sandbox.Id, id) }
	return first(s.SandboxStatuses, is).GetId()
}

// cacheEntry is the cached state of a pod. For an absent pod, it contains only the time of the observation.
type cacheEntry struct {
	// status is the last good status. It is empty if every inspection failed, and nil before the first inspection.
	status *PodStatus
	err    error
	// listed is the pod in its newest list; nil if the pod is absent.
	listed *Pod
	keys   []indexKey // the index's keys for status and listed
	// stored is the start of the list for which the status was stored.
	stored time.Time
	// observed is the start of the newest list that confirmed the entry.
	observed time.Time
	// held is true if newer full lists do not confirm the entry.
	held bool
}

// withListed returns the status, or a copy with the listed containers and sandboxes that the status
// lacks. If no inspection has succeeded, the copy also has the listed name and labels of the pod.
func (e *cacheEntry) withListed(uid types.UID) *PodStatus {
	status := cmp.Or(e.status, emptyStatus(uid))
	full := *status
	nameless := status.Name == "" && e.listed != nil
	if nameless {
		full.Name, full.Namespace, full.Labels = e.listed.Name, e.listed.Namespace, e.listed.Labels
		full.Annotations = e.listed.Annotations
	}
	full.ContainerStatuses = withMissing(full.ContainerStatuses, e.listed, listedStatus)
	full.SandboxStatuses = slices.Clip(full.SandboxStatuses)
	for _, c := range e.listed.sandboxes() {
		if status.fullID(c.ID.ID) == "" {
			full.SandboxStatuses = append(full.SandboxStatuses, listedSandbox(c))
		}
	}
	was := len(status.ContainerStatuses) + len(status.SandboxStatuses)
	if !nameless && was == len(full.ContainerStatuses)+len(full.SandboxStatuses) {
		return status
	}
	return &full
}
