package plegtest

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// callKey identifies all calls of a method. With a UID, it identifies the method's calls for one
// pod.
type callKey struct {
	method Method
	uid    types.UID
}

type callCount struct {
	calls, inFlight, maxInFlight int
}

// Calls returns how often a method has been called. It includes calls in flight.
func (r *Runtime) Calls(m Method) int {
	return r.count(callKey{method: m}).calls
}

// PodCalls returns how often GetPod or GetPodStatus has been called for a pod. The pod need not
// exist.
func (r *Runtime) PodCalls(m Method, uid types.UID) int {
	return r.count(callKey{m, uid}).calls
}

// InFlight returns how many calls of a method are in flight now.
func (r *Runtime) InFlight(m Method) int {
	return r.count(callKey{method: m}).inFlight
}

// MaxInFlight returns the largest number of calls of a method that were in flight at once.
func (r *Runtime) MaxInFlight(m Method) int {
	return r.count(callKey{method: m}).maxInFlight
}

// MaxPodInFlight returns the largest number of calls of a method for one pod that were in flight at
// once.
func (r *Runtime) MaxPodInFlight(m Method, uid types.UID) int {
	return r.count(callKey{m, uid}).maxInFlight
}

// ResetCalls sets the numbers of calls to zero. InFlight still counts the calls in flight.
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

// begin counts a call and returns the faults that affect it. If one of these faults is Stale, begin
// also returns the present list.
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
