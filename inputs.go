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
	// release takes the memory back when the result has been taken in; nil if none does.
	release func()
}

func newInputs() inputs {
	return inputs{
		requests:   make(map[types.UID]struct{}),
		reinspects: make(map[types.UID]struct{}),
		readers:    make(map[types.UID]struct{}),
		hints:      make(map[types.UID]struct{}),
	}
}

// reset empties the inputs and keeps their memory.
func (in *inputs) reset() {
	for _, res := range in.results {
		if res.release != nil {
			res.release()
		}
	}
	clear(in.results)
	clear(in.relists)
	in.results, in.relists, in.connected = in.results[:0], in.relists[:0], in.connected[:0]
	in.periodic, in.hintAll, in.lostHints = nil, false, false
	clear(in.requests)
	clear(in.reinspects)
	clear(in.readers)
	clear(in.hints)
}

// addHint adds an event of the runtime.
func (in *inputs) addHint(e ContainerEvent) {
	switch {
	case e.PodUID == "":
		in.hintAll = true
	case len(in.hints) >= maxHints:
		in.lostHints = true
	default:
		in.hints[e.PodUID] = struct{}{}
	}
}

// relistCaller is a caller of Relist.
type relistCaller struct {
	// done gets one token when the relist is complete.
	done chan struct{}
}

func newRelistCaller() any { return &relistCaller{done: make(chan struct{}, 1)} }

// sortedKeys has what a map holds worked off in an order that can be repeated. It
// allocates nothing for an empty map.
func sortedKeys[V any](m map[types.UID]V) []types.UID {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}
