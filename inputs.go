package pleg

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// maxHints bounds the memory of hints about unknown pods, in case a runtime sends garbage faster
// than it answers.
const maxHints = 10000

// inputs are the inputs of one step of the reconciler. They are bounded: results by the
// calls in flight, hints by maxHints, and the requests of callers by being sets of pods.
type inputs struct {
	// periodic switches the relists of every period on or off.
	periodic *bool
	results  []*result
	relists  []*relistCaller
	// requests are the pods of RequestRelist, reinspects those of RequestReinspect.
	requests   map[types.UID]struct{}
	reinspects map[types.UID]struct{}
	// readers are the pods with a reader that has begun to block.
	readers map[types.UID]struct{}
	// hints are the pods that events name. hintAll says that one named none, lostHints that
	// there were more than could be kept.
	hints              map[types.UID]struct{}
	hintAll, lostHints bool
	// verbosity is the logger's.
	verbosity int
	// connected has the beginnings (true) and ends of connections to the event stream.
	connected []bool
}

// result is a call that has returned.
type result struct {
	call   *schedule.Call
	pods   []*Pod
	pod    *Pod
	status *PodStatus
	err    error
	// stopped: it failed because Stop cancelled it.
	stopped bool
}

// addHint adds an event of the runtime.
func (in *inputs) addHint(e ContainerEvent) {
	switch {
	case e.PodUID == "":
		in.hintAll = true
	case len(in.hints) >= maxHints:
		in.lostHints = true
	default:
		put(&in.hints, e.PodUID, struct{}{})
	}
}

// relistCaller is a caller of Relist.
type relistCaller struct {
	// done is closed when the relist is complete.
	done chan struct{}
}

func newRelistCaller() *relistCaller { return &relistCaller{done: make(chan struct{})} }

// sortedKeys has what a map holds worked off in an order that can be repeated.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 { // as in most steps, which then allocate nothing for it
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}
