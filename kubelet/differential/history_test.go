package kubelet

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// op is a change of the node or an action of a user.
type op struct {
	kind  opKind
	uid   types.UID
	id    string
	state string
	wait  time.Duration
}

type opKind string

const (
	opSet        opKind = "set"        // a container changes its state
	opSetSandbox opKind = "setSandbox" // a sandbox changes its state
	opDrop       opKind = "drop"       // a container or sandbox is removed
	opRemove     opKind = "remove"     // a pod is removed
	opIPs        opKind = "ips"        // a pod's addresses change
	opWait       opKind = "wait"       // time passes
	opRelist     opKind = "relist"
	opFailList   opKind = "failList"  // a relist whose list fails
	opReinspect  opKind = "reinspect" // the user requests an inspection
	opRead       opKind = "read"      // the user reads a status that is at most wait old
	opBreak      opKind = "break"     // inspections of a pod begin to fail
	opMend       opKind = "mend"      // inspections of a pod succeed again
	opBlock      opKind = "hang"      // inspections of a pod begin to block
	opHeal       opKind = "heal"      // inspections of a pod continue
)

func (o op) String() string {
	return fmt.Sprintf("%s pod=%s id=%s state=%s wait=%v", o.kind, o.uid, o.id, o.state, o.wait)
}

// There are few names, so that many steps affect the same pods and containers.
var (
	someUIDs  = []types.UID{"a", "b", "c", "d"}
	someWaits = []time.Duration{
		300 * time.Millisecond, time.Second, time.Minute,
		3*time.Minute - time.Millisecond, 3 * time.Minute, 3*time.Minute + time.Millisecond,
	}
)

// anyHistory draws histories in which any state may follow any other state. Some of these histories
// are impossible on a real runtime.
func anyHistory() *rapid.Generator[[]op] {
	return histories([]opKind{
		opSet, opSet, opSet, opSetSandbox, opDrop, opRemove, opIPs, opWait,
		opRelist, opRelist, opRelist, opFailList, opReinspect, opRead, opRead,
	}, []string{created, running, exited, unknown})
}

func histories(kinds []opKind, states []string) *rapid.Generator[[]op] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		o := op{kind: rapid.SampledFrom(kinds).Draw(t, "kind"), uid: rapid.SampledFrom(someUIDs).Draw(t, "uid")}
		container := func() string { return string(o.uid) + rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "id") }
		sandbox := func() string {
			return string(o.uid) + rapid.SampledFrom([]string{"-sandbox", "-sandbox2"}).Draw(t, "sandbox")
		}
		switch o.kind {
		case opSet:
			o.id, o.state = container(), rapid.SampledFrom(states).Draw(t, "state")
		case opSetSandbox:
			o.id, o.state = sandbox(), rapid.SampledFrom([]string{running, exited}).Draw(t, "state")
		case opDrop:
			o.id = container()
			if rapid.Bool().Draw(t, "dropsSandbox") {
				o.id = sandbox()
			}
		case opIPs:
			o.id = rapid.SampledFrom([]string{"", "10.0.0.7", "10.0.0.8"}).Draw(t, "ip")
		case opWait, opRead:
			o.wait = rapid.SampledFrom(someWaits).Draw(t, "wait")
		}
		return o
	}), 1, 60)
}

// apply changes the node as the op describes. If the op is not a change of the node, apply does
// nothing.
func (n *node) apply(o op) {
	switch o.kind {
	case opSet:
		n.set(o.uid, o.id, o.state)
	case opSetSandbox:
		n.setSandbox(o.uid, o.id, o.state)
	case opDrop:
		n.drop(o.uid, o.id)
	case opRemove:
		n.remove(o.uid)
	case opIPs:
		if p := n.pod(o.uid); p != nil {
			p.ips = nil
			if o.id != "" {
				p.ips = []string{o.id}
			}
		}
	case opBreak:
		n.inspectErr[o.uid] = errBroken
	case opMend:
		delete(n.inspectErr, o.uid)
	case opBlock:
		n.hang(o.uid)
	case opHeal:
		n.heal(o.uid)
	}
}
