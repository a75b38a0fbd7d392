package pleg

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// cacheIndex finds pods by what their statuses and lists show, and for a minute by what they showed.
// The time of a look-up does not depend on the number of pods. The cache that owns it guards it.
type cacheIndex struct {
	// pods has the pods that have a key, and those that had it. The value is nil while a pod has it.
	pods map[indexKey]map[types.UID]*goneKey
	// gone has the keys that are gone, in the order in which they went.
	gone []*goneKey
	now  time.Time  // zero without a generator: nothing that is gone is kept
	keys []indexKey // scratch
}

// goneKey is a key that a pod had, with the last status that had it. That has GoneAt.
type goneKey struct {
	indexKey
	status *PodStatus
}

// What is gone is kept for goneTime, and at most maxGone keys.
const (
	goneTime = time.Minute
	maxGone  = 10_000
)

// indexKey is one thing by which a pod is found.
type indexKey struct {
	kind      indexKind
	namespace string // of a name
	value     string
}

type indexKind uint8

const (
	indexContainer indexKind = iota // the beginning of the ID of a container or sandbox
	indexName
	indexIP // in canonical form
)

// shortestID is the length of the beginning of an ID by which a container is found.
const shortestID = 12

// containerKey returns the key of a container or sandbox.
func containerKey(id string) indexKey {
	return indexKey{indexContainer, "", id[:min(len(id), shortestID)]}
}

// replace replaces the keys of a pod, which had the status old, by those of its list and status. It
// returns them. The keys of most pods do not change.
func (x *cacheIndex) replace(uid types.UID, keys []indexKey, old *PodStatus, listed *Pod, status *PodStatus,
) []indexKey {
	x.keys = appendKeys(x.keys[:0], listed, status)
	if slices.Equal(keys, x.keys) {
		return keys
	}
	now := slices.Clone(x.keys)
	for _, key := range now {
		if x.pods[key] == nil {
			put(&x.pods, key, make(map[types.UID]*goneKey))
		}
		x.pods[key][uid] = nil
	}
	var last *PodStatus
	if old != nil && !x.now.IsZero() {
		copied := *old
		copied.GoneAt, last = x.now, &copied
	}
	kept := make(map[indexKey]bool, len(now))
	for _, key := range now {
		kept[key] = true
	}
	for _, key := range keys {
		switch {
		case kept[key] || x.pods[key][uid] != nil: // the latter if a key is repeated
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

// advance sets the time, and forgets what has been gone for long.
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
		x.gone = nil // its memory may be that of a storm
	}
}

func (x *cacheIndex) remove(key indexKey, uid types.UID) {
	delete(x.pods[key], uid)
	if len(x.pods[key]) == 0 {
		delete(x.pods, key)
	}
}

// find returns the pods that have a key, by UID.
func (x *cacheIndex) find(key indexKey) (uids []types.UID) {
	for uid, went := range x.pods[key] {
		if went == nil {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// appendKeys appends the keys of a pod, nil for none, and of its status, nil for none. They may be
// repeated.
func appendKeys(keys []indexKey, listed *Pod, status *PodStatus) []indexKey {
	add := func(kind indexKind, namespace, value string) {
		if value != "" {
			keys = append(keys, indexKey{kind, namespace, value})
		}
	}
	for _, list := range [...][]*Container{listed.containers(), listed.sandboxes()} {
		for _, c := range list {
			keys = append(keys, containerKey(c.ID.ID))
		}
	}
	if status == nil {
		return keys
	}
	for _, s := range status.ContainerStatuses {
		if s != nil && s.ID.ID != "" {
			keys = append(keys, containerKey(s.ID.ID))
		}
	}
	for _, s := range status.SandboxStatuses {
		if id := s.GetId(); id != "" {
			keys = append(keys, containerKey(id))
		}
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
