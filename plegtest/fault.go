package plegtest

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Method names a method of the fake Runtime, for faults and call counts.
type Method string

// The methods of the fake Runtime.
const (
	GetPods              Method = "GetPods"
	GetPodStatus         Method = "GetPodStatus"
	GetPod               Method = "GetPod"
	WatchContainerEvents Method = "WatchContainerEvents"
	WatchContainerExits  Method = "WatchContainerExits"
)

// AnyPod as the pod of a fault matches every call of the method.
const AnyPod types.UID = ""

// Fault is a fault of calls to the fake Runtime. Its effects happen in the order of its fields. If
// several faults match a call, they happen in the order in which they were injected. The call returns
// the first error, and the effects after it do not happen.
type Fault struct {
	// Method is the affected method; empty means all methods.
	Method Method
	// PodUID is the pod whose calls are affected; AnyPod, the default, means all calls. The pod need
	// not exist. GetPods and the calls that watch have no pod, so only AnyPod matches them.
	PodUID types.UID
	// Times is how many calls are affected before the fault ends; 0 means all calls until the fault
	// is healed.
	Times int

	// Stale makes the call return the state at its beginning, not the state after it was delayed or
	// blocked.
	Stale bool
	// Delay makes the call take this long, by the runtime's clock. If the context ends first, the
	// call returns the context's error at once.
	Delay time.Duration
	// Block makes the call block until its context ends or the fault is healed. Then it continues as
	// usual.
	Block bool
	// IgnoreCancel makes Delay and Block ignore the cancellation of the context: only
	// healing the fault ends them early.
	IgnoreCancel bool
	// Do is called in the goroutine of the call. If it returns an error, the call fails. It may
	// also panic.
	Do func(ctx context.Context) error
	// Partial makes a failing GetPods return this many pods with its error.
	Partial int
	// Err fails the call.
	Err error
}

// injectedFault is a fault in force.
type injectedFault struct {
	Fault
	healed chan struct{} // closed by heal

	// guarded by faultSet's owner
	hits int
}

// faultSet holds the faults in force. Its owner guards it with a lock.
type faultSet struct {
	faults []*injectedFault
}

func (s *faultSet) add(f Fault) *injectedFault {
	in := &injectedFault{Fault: f, healed: make(chan struct{})}
	s.faults = append(s.faults, in)
	return in
}

// heal ends a fault, and releases the calls that it blocks.
func (s *faultSet) heal(in *injectedFault) {
	s.faults = slices.DeleteFunc(s.faults, func(f *injectedFault) bool { return f == in })
	select {
	case <-in.healed:
	default:
		close(in.healed)
	}
}

// hit returns the faults that affect a call, and counts the call for them. A fault that has used up
// its Times stays until it is healed, because it may still block calls.
func (s *faultSet) hit(m Method, uid types.UID) []*injectedFault {
	var hit []*injectedFault
	for _, f := range s.faults {
		if f.Method != "" && f.Method != m || f.PodUID != AnyPod && f.PodUID != uid {
			continue
		}
		if f.Times > 0 && f.hits >= f.Times {
			continue
		}
		f.hits++
		hit = append(hit, f)
	}
	return hit
}

// apply applies the fault to a call, and returns the error with which the call fails.
func (f *injectedFault) apply(ctx context.Context, clk clock.Clock) error {
	done := ctx.Done()
	if f.IgnoreCancel {
		done = nil
	}
	if f.Delay > 0 {
		timer := clk.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-f.healed:
		case <-done:
			return ctx.Err()
		}
	}
	if f.Block {
		select {
		case <-f.healed:
		case <-done:
			return ctx.Err()
		}
	}
	if f.Do != nil {
		if err := f.Do(ctx); err != nil {
			return err
		}
	}
	return f.Err
}

// Inject starts a fault. The returned function heals it: the fault ends, and calls that it blocks
// continue. Healing twice is harmless.
func (r *Runtime) Inject(f Fault) (heal func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.faults.add(f)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults.heal(in)
	}
}

// Heal heals every fault. Defer it in a test whose calls ignore cancellation, so that no goroutine
// is left behind.
func (r *Runtime) Heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.faults.faults) > 0 {
		r.faults.heal(r.faults.faults[0])
	}
}

// Fail makes calls for a pod, or all calls with AnyPod, fail with err until healed. See Inject for
// other faults.
func (r *Runtime) Fail(m Method, uid types.UID, err error) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Err: err})
}

// Delay makes calls take d until healed. A call returns when its context ends.
func (r *Runtime) Delay(m Method, uid types.UID, d time.Duration) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Delay: d})
}

// Block makes calls block until healed. A call returns the error of its context when that ends.
func (r *Runtime) Block(m Method, uid types.UID) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Block: true})
}

// BlockIgnoringCancel makes calls block until healed, even if their context ends.
func (r *Runtime) BlockIgnoringCancel(m Method, uid types.UID) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Block: true, IgnoreCancel: true})
}
