package pleg

import (
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// cacheIndex finds pods by what their statuses say. The cache that owns it guards it.
//
// A status that says the same as the one before touches no map: that is what most
// inspections bring, and it keeps the index out of BenchmarkEverythingChanged. No keys are
// kept beside the maps, because a status is never modified: the old one says which keys to
// remove.
type cacheIndex struct {
	containers index[string] // by the ID of a container or sandbox
	names      index[podFullName]
	ips        index[string] // in canonical form
}

// podFullName is the name of a pod in its namespace.
type podFullName struct{ namespace, name string }

// replace takes in that a pod has another status. Either may be nil for none.
func (x *cacheIndex) replace(uid types.UID, old, status *PodStatus) {
	if old == status {
		return
	}
	old, status = orNoStatus(old), orNoStatus(status)
	if !sameInspectedIDs(old, status) {
		x.containers.replace(uid, inspectedIDs(old), inspectedIDs(status))
	}
	if old.Name != status.Name || old.Namespace != status.Namespace {
		x.names.replace(uid, fullNames(old), fullNames(status))
	}
	if !slices.Equal(old.IPs, status.IPs) {
		x.ips.replace(uid, canonicalIPs(old), canonicalIPs(status))
	}
}

var noStatus = &PodStatus{}

func orNoStatus(s *PodStatus) *PodStatus {
	if s == nil {
		return noStatus
	}
	return s
}

// sameInspectedIDs reports whether two statuses have the same containers and sandboxes in
// the same order.
func sameInspectedIDs(a, b *PodStatus) bool {
	if len(a.ContainerStatuses) != len(b.ContainerStatuses) || len(a.SandboxStatuses) != len(b.SandboxStatuses) {
		return false
	}
	for i, s := range a.ContainerStatuses {
		if t := b.ContainerStatuses[i]; s == nil || t == nil || s.ID.ID != t.ID.ID {
			return false
		}
	}
	for i, s := range a.SandboxStatuses {
		if s.GetId() != b.SandboxStatuses[i].GetId() {
			return false
		}
	}
	return true
}

// inspectedIDs returns the IDs of the containers and sandboxes of a status.
func inspectedIDs(status *PodStatus) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, s := range status.ContainerStatuses {
			if s != nil && s.ID.ID != "" && !yield(s.ID.ID) {
				return
			}
		}
		for _, s := range status.SandboxStatuses {
			if id := s.GetId(); id != "" && !yield(id) {
				return
			}
		}
	}
}

// fullNames returns the name of a status that has one.
func fullNames(status *PodStatus) iter.Seq[podFullName] {
	return func(yield func(podFullName) bool) {
		if status.Name != "" {
			yield(podFullName{status.Namespace, status.Name})
		}
	}
}

// canonicalIPs returns the addresses of a status.
func canonicalIPs(status *PodStatus) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, ip := range status.IPs {
			if ip != "" && !yield(canonicalIP(ip)) {
				return
			}
		}
	}
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

// index has the pods of each key. Most keys have one pod; on the host's network, all pods
// have one address.
type index[K comparable] map[K]indexedPods

// indexedPods are the pods of a key: first, and the others if there are any.
type indexedPods struct {
	first  types.UID
	others map[types.UID]struct{}
}

// replace takes a pod from the old keys, and then adds it to the new ones. Keys may be
// repeated, as bad data repeats them, and may be in both.
func (x *index[K]) replace(uid types.UID, old, keys iter.Seq[K]) {
	for key := range old {
		x.remove(key, uid)
	}
	for key := range keys {
		x.add(key, uid)
	}
}

func (x *index[K]) add(key K, uid types.UID) {
	pods, known := (*x)[key]
	switch {
	case !known:
		if *x == nil {
			*x = make(index[K])
		}
		pods.first = uid
	case pods.first == uid:
		return
	default:
		if pods.others == nil {
			pods.others = make(map[types.UID]struct{})
		}
		pods.others[uid] = struct{}{}
	}
	(*x)[key] = pods
}

func (x *index[K]) remove(key K, uid types.UID) {
	pods, known := (*x)[key]
	if !known {
		return
	}
	if pods.first == uid {
		if len(pods.others) == 0 {
			delete(*x, key)
			return
		}
		for pods.first = range pods.others { // any of them: whoever asks sorts
			break
		}
		uid = pods.first
	}
	delete(pods.others, uid)
	if len(pods.others) == 0 {
		pods.others = nil
	}
	(*x)[key] = pods
}

// all returns the pods of a key, sorted.
func (x index[K]) all(key K) []types.UID {
	pods, known := x[key]
	if !known {
		return nil
	}
	all := make([]types.UID, 1, 1+len(pods.others))
	all[0] = pods.first
	for uid := range pods.others {
		all = append(all, uid)
	}
	slices.Sort(all)
	return all
}
