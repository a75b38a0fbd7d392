package plegtest

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Method is the name of a method of the fake Runtime, for faults and call counts.
type Method string

// The methods of the fake Runtime.
const (
	GetPods              Method = "GetPods"
	GetPodStatus         Method = "GetPodStatus"
	GetPod               Method = "GetPod"
	WatchContainerEvents Method = "WatchContainerEvents"
	WatchContainerExits  Method = "WatchContainerExits"
)

// AnyMethod and AnyPod, in a fault, match the calls of all methods and of all pods.
const (
	AnyMethod Method    = ""
	AnyPod    types.UID = ""
)

// Fault describes a fault in calls to the fake Runtime. Its effects happen in the order of the
// fields. If several faults match a call, they take effect in the order in which they were
// injected. The call returns the first error, and no later effect happens.
type Fault struct {
	// Method is the affected method. AnyMethod, the default, means all methods.
	Method Method
	// PodUID is the pod whose calls are affected. AnyPod, the default, means all calls. The pod
	// need not exist. Calls of GetPods and of the watch methods are not for one pod, so only AnyPod
	// matches them.
	PodUID types.UID
	// Times is the number of calls that are affected. 0 means all calls until the fault is healed.
	Times int

	// Stale makes the call return the state at the beginning of the call. Without Stale, a delayed
	// or blocked call returns the state at its end.
	Stale bool
	// Delay makes the call take this long, by the runtime's clock. If the context ends first, the
	// call returns the context's error at once.
	Delay time.Duration
	// Block makes the call block until the fault is healed. If the context ends first, the call
	// returns the context's error.
	Block bool
	// IgnoreCancel makes Delay and Block ignore the end of the context. Only if the fault is healed
	// do the affected calls continue early.
	IgnoreCancel bool
	// Do is called in the goroutine of the call. If Do returns an error, the call fails. Do may
	// also panic.
	Do func(ctx context.Context) error
	// Partial is the number of pods that a failing GetPods returns with its error.
	Partial int
	// Err is the error that the call returns; nil for none.
	Err error
}

// injectedFault is a fault that is not healed yet.
type injectedFault struct {
	Fault
	healed chan struct{} // closed by heal

	// hits is the number of affected calls so far. The lock of faultSet's owner guards it.
	hits int
}

// faultSet contains the faults that are not healed yet. Its owner guards it with a lock.
type faultSet struct {
	faults []*injectedFault
}

func (s *faultSet) add(f Fault) *injectedFault {
	in := &injectedFault{Fault: f, healed: make(chan struct{})}
	s.faults = append(s.faults, in)
	return in
}

// heal ends a fault and releases the calls that the fault blocks.
func (s *faultSet) heal(in *injectedFault) {
	s.faults = slices.DeleteFunc(s.faults, func(f *injectedFault) bool { return f == in })
	select {
	case <-in.healed:
	default:
		close(in.healed)
	}
}

// hit returns the faults that affect a call, and counts the call for each of them. It keeps a fault
// that has used up its Times, because heal must still release the calls that the fault blocks.
func (s *faultSet) hit(m Method, uid types.UID) []*injectedFault {
	var hit []*injectedFault
	for _, f := range s.faults {
		if f.Method != AnyMethod && f.Method != m || f.PodUID != AnyPod && f.PodUID != uid {
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

// apply applies the fault to a call and returns the error with which the call fails, if any.
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

// Inject starts a fault. The returned function heal ends the fault and releases the calls that the
// fault blocks. A second call of heal does nothing.
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

// Heal heals all faults. Defer it in a test with calls that ignore cancellation; otherwise the
// goroutines of blocked calls never end.
func (r *Runtime) Heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.faults.faults) > 0 {
		r.faults.heal(r.faults.faults[0])
	}
}

// Fail makes calls of the method m for the pod uid fail with err until heal is called. With AnyPod,
// all calls of the method fail. For other faults see Inject.
func (r *Runtime) Fail(m Method, uid types.UID, err error) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Err: err})
}

// Delay makes calls of the method m for the pod uid take the time d until heal is called. With
// AnyPod, all calls of the method are affected. If a call's context ends first, the call returns
// the context's error.
func (r *Runtime) Delay(m Method, uid types.UID, d time.Duration) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Delay: d})
}

// Block makes calls of the method m for the pod uid block until heal is called. With AnyPod, all
// calls of the method block. If a call's context ends first, the call returns the context's error.
func (r *Runtime) Block(m Method, uid types.UID) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Block: true})
}

// BlockIgnoringCancel makes calls of the method m for the pod uid block until heal is called, even
// if a call's context ends. With AnyPod, all calls of the method block.
func (r *Runtime) BlockIgnoringCancel(m Method, uid types.UID) (heal func()) {
	return r.Inject(Fault{Method: m, PodUID: uid, Block: true, IgnoreCancel: true})
}
