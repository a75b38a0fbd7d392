package cri

import (
	"cmp"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// This file is what is held of the list before, and how the next is made of it.
//
// An item of an answer is skipped, that is: not decoded, if an item with its ID is
// held and its bytes are those that that one was decoded from, as far as a listing
// shows (walk.go says how that is told, and why the annotations need not be looked
// at). Then what is held is what decoding would give. Everything else is decoded
// whole. If nothing has changed and nothing is missing, the listing is the one
// before, the same slice of the same pods; if not, the pods of the items that
// changed are made anew and the others handed out again.
//
// What is held changes only in commit, when both lists are complete, so that a
// list that breaks off changes nothing.

// kind tells containers and sandboxes apart.
type kind int

const (
	sandboxes kind = iota
	containers
	kinds
)

func (k kind) String() string {
	if k == sandboxes {
		return "sandbox"
	}
	return "container"
}

// decode decodes an item whole.
func (k kind) decode(message []byte, runtimeName string) (shown, error) {
	if k == sandboxes {
		var s runtimeapi.PodSandbox
		err := proto.Unmarshal(message, &s)
		return showSandbox(&s, runtimeName), err
	}
	var c runtimeapi.Container
	err := proto.Unmarshal(message, &c)
	return showContainer(&c, runtimeName), err
}

// item is a container or a sandbox that is held. What it shows does not change; a
// container that changes gets a new item.
type item struct {
	// Owned by the pass, and all that it looks at in an item that did not change:
	// together and first, for that is mostly the price of fetching it.
	seen  uint64 // the pass that listed the item last
	kind  kind
	trace trace

	shown
	pod *heldPod // nil if the item belongs to no pod

	// exit is nil until the container is known to have exited. Guarded by held.mu.
	exit *exit
}

// heldPod is a pod with the items that it is made of.
type heldPod struct {
	uid   types.UID
	items [kinds][]*item
	pod   *pleg.Pod
}

// held is what the last complete list showed. Only one pass at a time may run;
// its methods but for those of statuses belong to whoever runs it.
type held struct {
	// mu guards what follows against those who look up statuses and pods while a
	// pass runs. The pass is the only one that writes, in commit, and so reads
	// without it.
	mu      sync.Mutex
	number  uint64 // of the pass that began last
	items   [kinds]map[string]*item
	pods    map[types.UID]*heldPod
	listing []*pleg.Pod

	// runtimeName is the name of the runtime that the items were decoded with.
	runtimeName string

	tally   badTally          // of the items held
	readers [kinds]itemReader // kept for their scratch space
}

func newHeld() *held {
	h := &held{pods: map[types.UID]*heldPod{}}
	for k := range h.items {
		h.items[k] = map[string]*item{}
	}
	return h
}

// begin starts a pass. It ends with commit, or is dropped.
func (h *held) begin(runtimeName string) *pass {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	return &pass{held: h, number: h.number, runtimeName: runtimeName, renamed: runtimeName != h.runtimeName}
}

func (h *held) insertLocked(it *item) *heldPod {
	h.items[it.kind][it.container.ID.ID] = it
	h.tally.add(it.bad, +1)
	if it.podUID == "" {
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

func (h *held) removeLocked(it *item) *heldPod {
	delete(h.items[it.kind], it.container.ID.ID)
	h.tally.add(it.bad, -1)
	if it.pod != nil {
		of := &it.pod.items[it.kind]
		*of = slices.DeleteFunc(*of, func(other *item) bool { return other == it })
	}
	return it.pod
}

// remakeLocked makes the pods that changed anew, and the listing with them.
func (h *held) remakeLocked(changed map[*heldPod]bool) {
	for pod := range changed {
		if len(pod.items[sandboxes])+len(pod.items[containers]) == 0 {
			delete(h.pods, pod.uid)
			continue
		}
		// What changed in an item need not show in its pod.
		if made := makePod(pod.uid, pod.items[sandboxes], pod.items[containers]); pod.pod == nil || !samePod(pod.pod, made) {
			pod.pod = made
		}
	}
	// The listing before was handed over and stays as it is.
	h.listing = make([]*pleg.Pod, 0, len(h.pods))
	for _, pod := range h.pods {
		h.listing = append(h.listing, pod.pod)
	}
	slices.SortFunc(h.listing, func(a, b *pleg.Pod) int { return cmp.Compare(a.ID, b.ID) })
}

// reuse returns the pod that is held if it shows the same as pod does, else pod.
func (h *held) reuse(pod *pleg.Pod) *pleg.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.pods[pod.ID]; known != nil && samePod(known.pod, pod) {
		return known.pod
	}
	return pod
}
