package agent

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podManager holds the pods that the agent runs. Its methods are safe for concurrent use.
type podManager struct {
	mu   sync.Mutex
	pods map[types.UID]*v1.Pod // nil before setPods; the map is replaced, never modified; guarded by mu
}

// setPods replaces all pods.
func (m *podManager) setPods(pods []*v1.Pod) {
	byUID := make(map[types.UID]*v1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = byUID
}

// getPods returns the pods by UID. known is false before the first call of setPods. Callers must not
// modify the map.
func (m *podManager) getPods() (pods map[types.UID]*v1.Pod, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods, m.pods != nil
}
