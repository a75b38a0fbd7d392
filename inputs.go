package pleg

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/schedule"
)

// maxHints bounds the memory of hints about unknown pods and containers, in case a runtime
// sends garbage faster than it answers.
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
	readers map[types.UID]minTimes
	hints   map[hint]struct{}
	// lostHints says that there were more than could be kept.
	lostHints bool
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

// minTimes are the earliest and the latest time that the readers of a pod wait for.
type minTimes struct{ earliest, latest time.Time }

// hint is a pod that an event spoke of, or a container where it named no pod.
type hint struct {
	uid         types.UID
	containerID string
}

func compareHints(a, b hint) int {
	return cmp.Or(cmp.Compare(a.uid, b.uid), cmp.Compare(a.containerID, b.containerID))
}

// addReader adds a reader that waits for something newer than minTime.
func (in *inputs) addReader(uid types.UID, minTime time.Time) {
	t, ok := in.readers[uid]
	if !ok {
		t = minTimes{minTime, minTime}
	}
	if minTime.Before(t.earliest) {
		t.earliest = minTime
	}
	t.latest = later(t.latest, minTime)
	put(&in.readers, uid, t)
}

// addHint adds an event of the runtime. An event without a pod and a container is about an
// unknown container.
func (in *inputs) addHint(e ContainerEvent) {
	h := hint{uid: e.PodUID}
	if e.PodUID == "" {
		h.containerID = e.ContainerID
	}
	if len(in.hints) >= maxHints {
		in.lostHints = true
		return
	}
	put(&in.hints, h, struct{}{})
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
