package prober

import (
	"cmp"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// resultsManager holds the results of probes. A result is what enough probes in a row have shown.
// The methods are safe for concurrent use. The zero value is empty.
type resultsManager struct {
	mu      sync.Mutex
	results map[resultKey]v1.ConditionStatus // guarded by mu
}

type resultKey struct {
	kind        plan.ProbeKind
	containerID string
}

// get returns ConditionUnknown if there is no result.
func (m *resultsManager) get(kind plan.ProbeKind, containerID string) v1.ConditionStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.results[resultKey{kind, containerID}], v1.ConditionUnknown)
}

// set reports whether the result has changed.
func (m *resultsManager) set(kind plan.ProbeKind, containerID string, result v1.ConditionStatus) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.results == nil {
		m.results = map[resultKey]v1.ConditionStatus{}
	}
	key := resultKey{kind, containerID}
	changed = m.results[key] != result
	m.results[key] = result
	return changed
}

func (m *resultsManager) remove(kind plan.ProbeKind, containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.results, resultKey{kind, containerID})
}
