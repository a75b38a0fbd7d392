package pleg

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Lookup returns what the cache knows of a pod. Unlike Get it tells apart, as far as the
// cache knows, a pod that is gone, one that no inspection has shown yet, and one without
// containers:
//
//   - known is false for a pod that is gone, and for one that the cache never heard of.
//   - known is true and status nil for a pod that is listed, but that no inspection has
//     shown yet; err is that of the last inspection, if it failed.
//   - Else status is the last good one, which may have no containers, and err that of the
//     last inspection, if it failed.
//
// The statuses that it and the other look-ups return are shared and must not be modified.
// They are those that the cache holds at the time of the call, however fresh. A look-up
// takes a time that does not depend on the number of pods, and never blocks.
func (c *PodCache) Lookup(uid types.UID) (status *PodStatus, known bool, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.entries[uid]
	switch {
	case e == nil:
		return nil, false, nil
	case e.status == nil:
		return nil, e.listed, nil
	case e.uninspected:
		return nil, true, e.err
	}
	return e.status, true, e.err
}

// ByContainerID returns the status of the pod that has a container or sandbox. The ID is
// the runtime's, or in the form "containerd://3f2a…"; what stands before the ID is not
// compared. If more than one status has the ID, which is bad data, it is the newest pod's.
func (c *PodCache) ByContainerID(id string) (status *PodStatus, known bool) {
	if _, bare, prefixed := strings.Cut(id, "://"); prefixed {
		id = bare
	}
	c.mu.RLock()
	found := c.statusesLocked(c.index.containers.all(id))
	c.mu.RUnlock()
	if len(found) == 0 {
		return nil, false
	}
	return found[0], true
}

// ByName returns the statuses of the pods with a name, newest first: those whose newest
// sandbox was created last. There is more than one while a pod is being replaced by one of
// its name, and none for the empty name.
func (c *PodCache) ByName(namespace, name string) []*PodStatus {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.statusesLocked(c.index.names.all(podFullName{namespace, name}))
}

// ByIP returns the statuses of the pods with an address, newest first. Pods on the host's
// network share its address, if the runtime reports it; a pod whose network is gone keeps
// the last that it had, which another may have by now. The address may be in any form of
// IPv4 or IPv6.
func (c *PodCache) ByIP(ip string) []*PodStatus {
	ip = canonicalIP(ip)
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.statusesLocked(c.index.ips.all(ip))
}

// statusesLocked returns the statuses of pods that are sorted by UID, newest first.
func (c *PodCache) statusesLocked(uids []types.UID) []*PodStatus {
	if len(uids) == 0 {
		return nil
	}
	statuses := make([]*PodStatus, len(uids))
	for i, uid := range uids {
		statuses[i] = c.entries[uid].status
	}
	slices.SortStableFunc(statuses, func(a, b *PodStatus) int { return cmp.Compare(createdAt(b), createdAt(a)) })
	return statuses
}

// createdAt returns when a pod's newest sandbox was created or, without sandboxes, its
// newest container, in nanoseconds since 1970.
func createdAt(status *PodStatus) int64 {
	var newest int64
	for _, s := range status.SandboxStatuses {
		newest = max(newest, s.GetCreatedAt())
	}
	if len(status.SandboxStatuses) > 0 {
		return newest
	}
	for _, s := range status.ContainerStatuses {
		if s != nil && !s.CreatedAt.IsZero() {
			newest = max(newest, s.CreatedAt.UnixNano())
		}
	}
	return newest
}
