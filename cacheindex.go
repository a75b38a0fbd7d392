package pleg

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// cacheIndex finds pods by what their statuses say, in a time that does not depend on the number of
// pods. The cache that owns it guards it.
type cacheIndex struct {
	pods map[indexKey][]types.UID // sorted: many pods may share an address
	now  []indexKey               // scratch
}

// indexKey is one thing by which a pod is found.
type indexKey struct {
	kind      indexKind
	namespace string // of a name
	value     string
}

type indexKind uint8

const (
	indexContainer indexKind = iota // the ID of a container or sandbox
	indexName
	indexIP // in canonical form
)

// replace takes in that a pod that had these keys is listed otherwise or has another status, nil for
// none, and returns its keys. A pod with the keys that it had, as most have, touches nothing.
func (x *cacheIndex) replace(uid types.UID, keys []indexKey, listed *Pod, status *PodStatus,
) (now []indexKey, changed bool) {
	x.now = appendKeys(x.now[:0], status)
	if listed != nil {
		for _, list := range [...][]*Container{listed.Containers, listed.Sandboxes} {
			for _, c := range list {
				x.now = append(x.now, indexKey{indexContainer, "", c.ID.ID}) // a status may repeat it
			}
		}
	}
	if slices.Equal(keys, x.now) {
		return keys, false
	}
	for _, key := range keys {
		x.remove(key, uid)
	}
	for _, key := range x.now {
		if i, has := slices.BinarySearch(x.pods[key], uid); !has { // keys may be repeated
			put(&x.pods, key, slices.Insert(x.pods[key], i, uid))
		}
	}
	return slices.Clone(x.now), true
}

func (x *cacheIndex) remove(key indexKey, uid types.UID) {
	pods := x.pods[key]
	switch i, has := slices.BinarySearch(pods, uid); {
	case !has:
	case len(pods) == 1:
		delete(x.pods, key)
	case i == 0: // a full list removes pods in this order
		x.pods[key] = pods[1:]
	default:
		x.pods[key] = slices.Delete(pods, i, i+1)
	}
}

// appendKeys appends the keys of a status.
func appendKeys(keys []indexKey, status *PodStatus) []indexKey {
	if status == nil {
		return keys
	}
	add := func(kind indexKind, namespace, value string) {
		if value != "" {
			keys = append(keys, indexKey{kind, namespace, value})
		}
	}
	for _, s := range status.ContainerStatuses {
		if s != nil {
			add(indexContainer, "", s.ID.ID)
		}
	}
	for _, s := range status.SandboxStatuses {
		add(indexContainer, "", s.GetId())
	}
	add(indexName, status.Namespace, status.Name)
	for _, ip := range status.IPs {
		add(indexIP, "", canonicalIP(ip))
	}
	return keys
}

// canonicalIP returns the one form of an address that has several, such as "::1"; what is
// not an address stays as it is.
func canonicalIP(ip string) string {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.Is4() { // an IPv4 address has one form
		return ip
	}
	return addr.Unmap().String()
}

// find returns the pods of a key, sorted.
func (x *cacheIndex) find(key indexKey) []types.UID { return slices.Clone(x.pods[key]) }

func (x *cacheIndex) has(key indexKey, uid types.UID) bool {
	_, has := slices.BinarySearch(x.pods[key], uid)
	return has
}

// What is gone is kept for goneTime, and at most maxGone keys.
const (
	goneTime = time.Minute
	maxGone  = 10_000
)

// goneIndex finds statuses by what they had and is gone. The cache that owns it guards it.
type goneIndex struct {
	now      time.Time
	statuses map[indexKey][]*PodStatus // of a key, one of each pod, the last to go comes last
	newest   map[podKey]*PodStatus     // those
	order    []goneKey                 // in which they went
}

// podKey is a key that a pod had, goneKey with its status.
type (
	podKey struct {
		indexKey
		uid types.UID
	}
	goneKey struct {
		podKey
		status *PodStatus
	}
)

// add notes that keys of a status are gone. It sets GoneAt.
func (x *goneIndex) add(status *PodStatus, keys []indexKey) {
	if x.now.IsZero() {
		return
	}
	status.GoneAt = x.now
	for _, key := range keys {
		gone := goneKey{podKey{key, status.ID}, status}
		x.remove(gone.podKey, x.newest[gone.podKey])
		put(&x.statuses, key, append(x.statuses[key], status))
		put(&x.newest, gone.podKey, status)
		x.order = append(x.order, gone)
	}
	x.advance(x.now)
}

// advance sets the time, and forgets what has been gone for long.
func (x *goneIndex) advance(now time.Time) {
	x.now = now
	for len(x.order) > maxGone || len(x.order) > 0 && now.Sub(x.order[0].status.GoneAt) > goneTime {
		first := x.order[0]
		x.order[0] = goneKey{}
		x.order = x.order[1:]
		x.remove(first.podKey, first.status)
	}
	if len(x.order) == 0 {
		x.statuses, x.newest, x.order = nil, nil, nil // their memory may be that of a storm
	}
}

// remove removes a status, unless it is nil or not the newest of its pod. The oldest of a key is
// found at once.
func (x *goneIndex) remove(key podKey, status *PodStatus) {
	if status == nil || x.newest[key] != status {
		return
	}
	delete(x.newest, key)
	switch left := x.statuses[key.indexKey]; {
	case len(left) == 1:
		delete(x.statuses, key.indexKey)
	case left[0] == status:
		left[0] = nil
		x.statuses[key.indexKey] = left[1:]
	default:
		i := slices.Index(left, status)
		x.statuses[key.indexKey] = slices.Delete(left, i, i+1)
	}
}
