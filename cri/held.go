package cri

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri/internal/wire"
)

// This file holds the last complete list. pass.go compares the next list with it.
//
// An item of an answer is not decoded if all its fields equal those of the held item with its ID
// (see wire.Trace). Decoding it would give the held item again. Every other item is decoded as a
// whole. If nothing changed and no item is missing, the previous listing is returned: the same
// slice of the same pods. Otherwise the pods of the changed items are rebuilt, and the other pods
// are returned again.
//
// The held items change only in commit, when both lists are complete. Therefore a list that breaks
// off changes nothing.

// kind distinguishes containers from sandboxes.
type kind int

const (
	sandboxes kind = iota
	containers
	kinds
)

// mapFields are the numbers of the map fields of a PodSandbox and of a Container: labels and
// annotations.
var mapFields = [kinds]wire.Maps{sandboxes: {5, 6}, containers: {8, 9}}

// decode decodes a whole item. entries is the number of its labels and annotations.
func (k kind) decode(message []byte, by reading) (_ shown, entries int, _ error) {
	if k == sandboxes {
		var s runtimeapi.PodSandbox
		found, err := unmarshal(message, &s)
		return showSandbox(&s, by).with(found), len(s.GetLabels()) + len(s.GetAnnotations()), err
	}
	var c runtimeapi.Container
	found, err := unmarshal(message, &c)
	return showContainer(&c, by).with(found), len(c.GetLabels()) + len(c.GetAnnotations()), err
}

// item is a held container or sandbox. The field shown never changes: when a container changes, it
// gets a new item.
type item struct {
	// Only a pass uses these fields. For an unchanged item, a pass reads no other fields. These
	// fields are next to each other, because fetching memory is most of the cost of a pass.
	seen  uint64 // the number of the last pass that listed the item
	kind  kind
	trace wire.Trace

	shown
	pod *heldPod // nil if the item belongs to no pod

	exit *exit // nil until a status has shown that the container has exited; guarded by held.mu
}

// heldPod is a pod with the items that it is made of.
type heldPod struct {
	uid   types.UID
	items [kinds][]*item
	pod   *pleg.Pod
}

// held is the state of the last complete list. Only one pass may run at a time. Only that pass may
// call the methods that do not lock.
type held struct {
	// mu guards the fields below for inspections and pod lists that run during a pass. Except for
	// started, only the pass writes the fields, so it reads them without the lock.
	mu     sync.Mutex
	number uint64 // the number of the last pass

	items   [kinds]map[string]*item
	pods    map[types.UID]*heldPod
	listing []*pleg.Pod

	// runtimeName is the runtime's name when the items were decoded.
	runtimeName string

	// started contains the sandboxes that cri-dockerd has started. The value is 0 once a full list
	// has shown the sandbox. Before that, it is the number of the first pass that must list the
	// sandbox. If that pass or a later one does not list it, the sandbox is gone. The map is nil
	// except in Runtime.held. Guarded by mu.
	started map[string]uint64

	tally   badTally          // counts the bad data of the held items
	podless [kinds]int        // how many held items belong to no pod
	readers [kinds]wire.Items // kept so that their scratch memory is reused
}

func newHeld() *held {
	h := &held{pods: map[types.UID]*heldPod{}}
	for k := range h.items {
		h.items[k] = map[string]*item{}
	}
	return h
}

// podOf returns the UID of the pod that a listed container or sandbox belongs to, or "".
func (h *held) podOf(id string) types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.items {
		if it := h.items[k][id]; it != nil {
			return types.UID(it.podUID)
		}
	}
	return ""
}

// begin starts a pass. The caller ends the pass with commit, or drops it.
func (h *held) begin(by reading) *pass {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	return &pass{held: h, number: h.number, by: by, renamed: by.runtimeName != h.runtimeName}
}

func (h *held) insertLocked(it *item) *heldPod {
	h.items[it.kind][it.container.ID.ID] = it
	h.tally.add(it.bad, +1)
	if it.podUID == "" {
		h.podless[it.kind]++
		return nil
	}
	uid := types.UID(it.podUID)
	pod := h.pods[uid]
	if pod == nil {
		pod = &heldPod{uid: uid}
		h.pods[uid] = pod
	}
	pod.items[it.kind] = append(pod.items[it.kind], it)
	it.pod = pod
	return pod
}

// removeLocked removes an item and returns its pod. The item stays in the pod until rebuildLocked.
// If removeLocked searched the pod for each item, many items would take quadratic time.
func (h *held) removeLocked(it *item) *heldPod {
	delete(h.items[it.kind], it.container.ID.ID)
	h.tally.add(it.bad, -1)
	if it.pod == nil {
		h.podless[it.kind]--
		return nil
	}
	return it.pod
}

// rebuildLocked rebuilds the changed pods and the listing.
func (h *held) rebuildLocked(changed map[*heldPod]bool) {
	for pod := range changed {
		for k := range kinds {
			pod.items[k] = slices.DeleteFunc(pod.items[k], func(it *item) bool {
				return h.items[k][it.container.ID.ID] != it
			})
		}
		if len(pod.items[sandboxes])+len(pod.items[containers]) == 0 {
			delete(h.pods, pod.uid)
			continue
		}
		// The pod can be unchanged although one of its items has changed.
		rebuilt := makePod(pod.uid, pod.items[sandboxes], pod.items[containers])
		if h.started != nil {
			h.showUnstartedLocked(rebuilt, 0)
		}
		if pod.pod == nil || !samePod(pod.pod, rebuilt) {
			pod.pod = rebuilt
		}
	}
	// The previous listing was returned to the caller and must not be modified.
	h.listing = make([]*pleg.Pod, 0, len(h.pods))
	for _, pod := range h.pods {
		h.listing = append(h.listing, pod.pod)
	}
	slices.SortFunc(h.listing, func(a, b *pleg.Pod) int { return cmp.Compare(a.ID, b.ID) })
}

// reuse returns the held pod if it equals the given pod of a pod list. Otherwise it returns the
// given pod.
func (h *held) reuse(pod *pleg.Pod) *pleg.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.showUnstartedLocked(pod, h.number+1)
	if known := h.pods[pod.ID]; known != nil && samePod(known.pod, pod) {
		return known.pod
	}
	return pod
}
