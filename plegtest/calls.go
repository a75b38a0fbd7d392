package plegtest

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// callKey is a method, or, with a pod, the calls of a method for that pod.
type callKey struct {
	method Method
	uid    types.UID
}

type callCount struct {
	calls, inFlight, maxInFlight int
}

// Calls returns how often a method has been called, calls that have not returned
// among them.
func (r *Runtime) Calls(m Method) int {
	return r.count(callKey{method: m}).calls
}

// PodCalls returns how often GetPod or GetPodStatus has been called for a pod.
func (r *Runtime) PodCalls(m Method, uid types.UID) int {
	return r.count(callKey{m, uid}).calls
}

// InFlight returns how many calls of a method have not returned.
func (r *Runtime) InFlight(m Method) int {
	return r.count(callKey{method: m}).inFlight
}

// MaxInFlight returns how many calls of a method there have been at once, at most.
func (r *Runtime) MaxInFlight(m Method) int {
	return r.count(callKey{method: m}).maxInFlight
}

// MaxPodInFlight returns how many calls of a method there have been at once for a
// pod, at most.
func (r *Runtime) MaxPodInFlight(m Method, uid types.UID) int {
	return r.count(callKey{m, uid}).maxInFlight
}

// ResetCalls makes the counts start from zero; calls in flight stay in flight.
func (r *Runtime) ResetCalls() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		c.calls, c.maxInFlight = 0, c.inFlight
	}
}

func (r *Runtime) count(key callKey) callCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.calls[key]; c != nil {
		return *c
	}
	return callCount{}
}

// begin counts a call, and returns the faults that it runs into and, if one of
// them makes it stale, what the list is now.
func (r *Runtime) begin(m Method, uid types.UID) ([]*pleg.Pod, []*injectedFault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beginLocked(callKey{method: m})
	if uid != "" {
		r.beginLocked(callKey{m, uid})
	}
	faults := r.faults.hit(m, uid)
	for _, f := range faults {
		if f.Stale {
			return r.listLocked(), faults
		}
	}
	return nil, faults
}

func (r *Runtime) beginLocked(key callKey) {
	c := r.calls[key]
	if c == nil {
		c = &callCount{}
		r.calls[key] = c
	}
	c.calls++
	c.inFlight++
	c.maxInFlight = max(c.maxInFlight, c.inFlight)
}

func (r *Runtime) end(m Method, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[callKey{method: m}].inFlight--
	if uid != "" {
		r.calls[callKey{m, uid}].inFlight--
	}
}
