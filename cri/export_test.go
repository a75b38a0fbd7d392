package cri

// SetUsualEndpoints sets the default endpoints of Connect. The returned function restores the old
// endpoints.
func SetUsualEndpoints(endpoints ...string) (restore func()) {
	before := usualEndpoints
	usualEndpoints = endpoints
	return func() { usualEndpoints = before }
}

// Held returns how many items, pods and statuses a Runtime keeps in memory.
func Held(r *Runtime) (items, pods, statuses int) {
	r.held.mu.Lock()
	defer r.held.mu.Unlock()
	for _, of := range r.held.items {
		items += len(of)
		for _, it := range of {
			if it.exit != nil {
				statuses++
			}
		}
	}
	return items, len(r.held.pods), statuses
}

// Started returns how many started sandboxes a Runtime remembers.
func Started(r *Runtime) int {
	r.held.mu.Lock()
	defer r.held.mu.Unlock()
	return len(r.held.started)
}

// UsualEndpoints returns the default endpoints of Connect.
func UsualEndpoints() []string { return usualEndpoints }
