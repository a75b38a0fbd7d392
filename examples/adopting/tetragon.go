package adopting

import (
	"context"
	"slices"
	"sync"

	"github.com/kubepleg/pleg"
)

// CgroupMap is Tetragon's Map. It maps the ID of a cgroup to a container. The kernel's events
// contain the ID of a cgroup.
type CgroupMap interface {
	// Get returns the container of a cgroup.
	Get(cgroupID uint64) (containerID string, ok bool)
	// Add sets the container of a cgroup. A hook in the runtime may call Add before the container
	// is listed.
	Add(podUID, containerID string, cgroupID uint64)
	// Update sets the containers of a pod.
	Update(podUID string, containerIDs []string)
}

// PodCgroups is a CgroupMap. If a container is gone, PodCgroups keeps it as long as the cache finds
// it.
type PodCgroups struct {
	cache *pleg.PodCache
	// find returns the ID of a container's cgroup. On cgroup v2, the ID is the inode of the
	// cgroup's directory. The directory's path below /sys/fs/cgroup is CgroupPath in the runtime's
	// ContainerInfo.
	find func(containerID string) (cgroupID uint64, ok bool)

	mu      sync.Mutex
	cgroups map[uint64]*cgroup // by ID; guarded by mu
}

type cgroup struct {
	podUID, containerID string
	listed              bool // true if the runtime has listed the container
}

// NewPodCgroups returns an empty map.
func NewPodCgroups(cache *pleg.PodCache, find func(containerID string) (uint64, bool)) *PodCgroups {
	return &PodCgroups{cache: cache, find: find, cgroups: make(map[uint64]*cgroup)}
}

// Follow updates the map until ctx ends or the generator stops. With Follow, the agent needs no pod
// informer and no API server.
func (m *PodCgroups) Follow(ctx context.Context, generator *pleg.GenericPLEG) error {
	update := func(e *pleg.PodLifecycleEvent) {
		status, _ := m.cache.Get(e.ID)
		var ids []string
		for _, c := range status.ContainerStatuses {
			ids = append(ids, c.ID.ID)
		}
		m.Update(string(e.ID), ids)
	}
	return generator.Handle(ctx, pleg.Handler{OnContainerStarted: update, OnContainerRemoved: update})
}

// Get implements CgroupMap.
func (m *PodCgroups) Get(cgroupID uint64) (containerID string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.cgroups[cgroupID]; c != nil {
		return c.containerID, true
	}
	return "", false
}

// Add implements CgroupMap.
func (m *PodCgroups) Add(podUID, containerID string, cgroupID uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cgroups[cgroupID] = &cgroup{podUID: podUID, containerID: containerID}
}

// Update implements CgroupMap. It also removes listed containers that the cache no longer finds.
func (m *PodCgroups) Update(podUID string, containerIDs []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	missing := slices.Clone(containerIDs)
	for id, c := range m.cgroups {
		if i := slices.Index(missing, c.containerID); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			c.listed = true
		} else if _, found := m.cache.ByContainerID(c.containerID); !found && c.listed {
			delete(m.cgroups, id)
		}
	}
	for _, containerID := range missing {
		if id, ok := m.find(containerID); ok {
			m.cgroups[id] = &cgroup{podUID, containerID, true}
		}
	}
}
