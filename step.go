package pleg

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/core/schedule"
)

// isClosed reports whether a channel is closed. Nothing may be sent on the channel.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// methods maps each kind of call to the runtime's method.
var methods = [...]string{schedule.ListAll: methodGetPods, schedule.ListPod: methodGetPod,
	schedule.Inspect: methodGetPodStatus}

// maxHints bounds the stored hints, exits and unknown pods, in case a faulty runtime reports many.
const maxHints = 10000

// inputs are the inputs of one step. Their size is bounded: results by the calls in flight, hints
// and exits by maxHints, and requests because they are sets of pods.
type inputs struct {
	// periodic starts or stops the periodic full lists; nil for no change.
	periodic *bool
	results  []*result
	relists  []*relistCaller
	// requests are the pods to list (RequestRelist, blocked readers). reinspects are the pods to
	// inspect (RequestReinspect).
	requests   map[types.UID]struct{}
	reinspects map[types.UID]struct{}
	// hints are the pods named by events. The empty UID stands for all pods: it is added for an event
	// without a pod, for a new stream, and above maxHints hints.
	hints map[types.UID]struct{}
	// exits are the exit events. If there are more than maxHints, the others become hints.
	exits []ContainerExit
}

type result struct {
	call   *schedule.Call
	pods   []*Pod
	pod    *Pod
	status *PodStatus
	err    error
	failed *RuntimeCall // of err; see CallError
	// stopped is true if the call failed because Stop cancelled it.
	stopped bool
}

func (in *inputs) addHint(uid types.UID) {
	if len(in.hints) >= maxHints {
		uid = ""
	}
	put(&in.hints, uid, struct{}{})
}

func (in *inputs) addExit(e ContainerExit) {
	if e.ContainerID == "" || len(in.exits) >= maxHints {
		in.addHint(e.PodUID)
		return
	}
	in.exits = append(in.exits, e)
}

type relistCaller struct {
	// done is closed when the relist is complete. Before that, err is set if the full list failed.
	done chan struct{}
	err  error
}

// sortedKeys returns the keys of a map. Sorting makes a run repeatable.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 { // avoids an allocation in most steps
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// outputs are carried out after a step, in the order of the fields.
type outputs struct {
	cancel   []cancelCall // some of these calls may have returned already
	begin    []beginCall
	log      []func(klog.Logger)
	relisted []*relistCaller // the callers whose relist is complete
	// wake is when the next step is due; zero for never.
	wake time.Time
}

type beginCall struct {
	*schedule.Call
	pod *Pod // the pod to inspect or list, as far as it is known; nil if unknown
}

type cancelCall struct {
	*schedule.Call
	cause error
}

// info logs a line after the step, without a lock, because a logger may block.
func (o *outputs) info(level int, message string, keysAndValues ...any) {
	o.log = append(o.log, func(logger klog.Logger) { logger.V(level).Info(message, keysAndValues...) })
}

// error logs an error after the step.
func (o *outputs) error(err error, message string, keysAndValues ...any) {
	o.log = append(o.log, func(logger klog.Logger) { logger.Error(err, message, keysAndValues...) })
}

func (r *reconciler) badData(reason badReason, object string) {
	log := func(message string, keysAndValues ...any) { r.out.info(0, message, keysAndValues...) }
	r.metrics.badData(log, reason, object)
}
