package kubelet

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// node is a simulated node for both generators: its pods, and the faults of its runtime.
type node struct {
	pods []*modelPod // in the order of their creation; a nil pod simulates bad data

	listErr    error
	inspectErr map[types.UID]error
	// hangs contains a channel for each pod with a stuck inspection. Closing the channel ends the
	// block.
	hangs map[types.UID]chan struct{}
	// listIsStuck blocks every list until it is closed; nil if lists do not block.
	listIsStuck chan struct{}
}

type modelPod struct {
	uid        types.UID
	containers []modelContainer
	sandboxes  []modelContainer // newest first
	ips        []string
}

type modelContainer struct {
	id    string
	state string // one of the states below
}

// These are the states of containers, as both generators spell them.
const (
	created = "created"
	running = "running"
	exited  = "exited"
	unknown = "unknown"
)

var errBroken = errors.New("the runtime is broken")

func newNode() *node {
	return &node{inspectErr: make(map[types.UID]error), hangs: make(map[types.UID]chan struct{})}
}

func (n *node) pod(uid types.UID) *modelPod {
	for _, p := range n.pods {
		if p != nil && p.uid == uid {
			return p
		}
	}
	return nil
}

// ensure returns the pod. A new pod has a running sandbox.
func (n *node) ensure(uid types.UID) *modelPod {
	if p := n.pod(uid); p != nil {
		return p
	}
	p := &modelPod{uid: uid, sandboxes: []modelContainer{{string(uid) + "-sandbox", running}}, ips: []string{"10.0.0.1"}}
	n.pods = append(n.pods, p)
	return p
}

func (n *node) remove(uid types.UID) {
	n.pods = slices.DeleteFunc(n.pods, func(p *modelPod) bool { return p.uid == uid })
}

// set puts a container into a state, and adds it if necessary.
func (n *node) set(uid types.UID, id, state string) {
	put(&n.ensure(uid).containers, id, state, false)
}

// setSandbox puts a sandbox into a state. A new sandbox becomes the newest.
func (n *node) setSandbox(uid types.UID, id, state string) {
	put(&n.ensure(uid).sandboxes, id, state, true)
}

func put(list *[]modelContainer, id, state string, newestFirst bool) {
	i := slices.IndexFunc(*list, func(c modelContainer) bool { return c.id == id })
	switch {
	case i >= 0:
		(*list)[i].state = state
	case newestFirst:
		*list = slices.Insert(*list, 0, modelContainer{id, state})
	default:
		*list = append(*list, modelContainer{id, state})
	}
}

// drop removes a container or sandbox, and the pod if nothing is left in it.
func (n *node) drop(uid types.UID, id string) {
	p := n.pod(uid)
	if p == nil {
		return
	}
	has := func(c modelContainer) bool { return c.id == id }
	p.containers = slices.DeleteFunc(p.containers, has)
	p.sandboxes = slices.DeleteFunc(p.sandboxes, has)
	if len(p.containers) == 0 && len(p.sandboxes) == 0 {
		n.remove(uid)
	}
}

// liveIPs returns the addresses that a runtime would report: none unless the newest sandbox runs.
func (p *modelPod) liveIPs() []string {
	if len(p.sandboxes) > 0 && p.sandboxes[0].state == running {
		return slices.Clone(p.ips)
	}
	return nil
}

// hang blocks the inspections of a pod. The method heal lets them continue.
func (n *node) hang(uid types.UID) {
	if n.hangs[uid] == nil {
		n.hangs[uid] = make(chan struct{})
	}
}

func (n *node) heal(uid types.UID) {
	if hang := n.hangs[uid]; hang != nil {
		delete(n.hangs, uid)
		close(hang)
	}
}
