package pleg

import (
	"context"

	"github.com/kubepleg/pleg/internal/calls"
	"github.com/kubepleg/pleg/internal/inbox"
	"github.com/kubepleg/pleg/internal/schedule"
)

// maxFreeCalls bounds the memory that is kept for calls.
const maxFreeCalls = 64

// runtimeCalls makes the calls to the runtime. Their results become inputs.
type runtimeCalls struct {
	// Set once.

	runtime Runtime
	getter  PodGetter // nil if the runtime does not implement it
	inbox   *inbox.Inbox[inputs]
	group   *calls.Group[*schedule.Call]
	// listAll and listAllDone belong to the full list in flight. They are made once, so that
	// a relist allocates nothing.
	listAll     func(context.Context) error
	listAllDone func(*schedule.Call, error, bool)

	// Owned by the loop.

	fullList result     // of the full list in flight
	free     []*podCall // calls about one pod that have returned, to be used again
}

func newRuntimeCalls(
	runtime Runtime, getter PodGetter, box *inbox.Inbox[inputs], group *calls.Group[*schedule.Call],
) *runtimeCalls {
	r := &runtimeCalls{runtime: runtime, getter: getter, inbox: box, group: group}
	r.listAll = func(ctx context.Context) (err error) {
		r.fullList.pods, err = r.runtime.GetPods(ctx, true)
		return err
	}
	put := func(in *inputs) { in.results = append(in.results, &r.fullList) }
	r.listAllDone = func(c *schedule.Call, err error, stopped bool) {
		r.fullList.call, r.fullList.err, r.fullList.stopped = c, err, stopped
		r.inbox.Put(put)
	}
	return r
}

// begin makes a call.
func (r *runtimeCalls) begin(c beginCall) {
	info := calls.Info{PodUID: c.UID, Since: c.Began}
	if c.pod != nil {
		info.Object = podObject{c.pod}
	}
	if c.Kind == schedule.ListAll {
		info.Method = methodGetPods
		r.fullList = result{}
		r.group.Go(c.Call, info, r.listAll, r.listAllDone)
		return
	}
	call := r.takePodCall()
	call.call, call.inspected = c.Call, c.pod
	method := call.listPod
	info.Method = methodGetPod
	if c.Kind == schedule.Inspect {
		method, info.Method = call.inspect, methodGetPodStatus
	}
	r.group.Go(c.Call, info, method, call.done)
}

// podCall is a call about one pod. Its memory is used again, for a relist in which every
// pod has changed makes as many (BenchmarkEverythingChanged).
type podCall struct {
	result
	inspected *Pod
	// Made once.
	listPod, inspect func(context.Context) error
	done             func(*schedule.Call, error, bool)
}

// takePodCall returns memory for a call, a used one if there is some.
func (r *runtimeCalls) takePodCall() *podCall {
	if n := len(r.free); n > 0 {
		call := r.free[n-1]
		r.free = r.free[:n-1]
		return call
	}
	call := &podCall{}
	call.listPod = func(ctx context.Context) (err error) {
		call.pod, err = r.getter.GetPod(ctx, call.call.UID)
		return err
	}
	call.inspect = func(ctx context.Context) (err error) {
		call.status, err = r.runtime.GetPodStatus(ctx, call.inspected)
		return err
	}
	put := func(in *inputs) { in.results = append(in.results, &call.result) }
	call.done = func(_ *schedule.Call, err error, stopped bool) {
		call.err, call.stopped = err, stopped
		r.inbox.Put(put)
	}
	call.release = func() {
		call.result, call.inspected = result{release: call.release}, nil
		if len(r.free) < maxFreeCalls {
			r.free = append(r.free, call)
		}
	}
	return call
}

// podObject is the pod that a call is for. Its name is formatted only when it is printed.
type podObject struct{ *Pod }

func (p podObject) String() string { return podName(p.Pod) }
