package kubelet

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// op is one thing that happens to a node or that a user does.
type op struct {
	kind  opKind
	uid   types.UID
	id    string
	state string
	wait  time.Duration
}

type opKind string

const (
	opSet        opKind = "set"        // a container is put into a state
	opSetSandbox opKind = "setSandbox" // and a sandbox
	opDrop       opKind = "drop"       // a container or sandbox goes
	opRemove     opKind = "remove"     // a pod goes
	opIPs        opKind = "ips"        // a pod's addresses change
	opWait       opKind = "wait"       // time passes
	opRelist     opKind = "relist"
	opFailList   opKind = "failList"  // a relist whose list fails
	opReinspect  opKind = "reinspect" // the user asks for an inspection
	opRead       opKind = "read"      // the user reads a status newer than now less wait
	opBreak      opKind = "break"     // inspections of a pod begin to fail
	opMend       opKind = "mend"      // and succeed again
	opBlock      opKind = "hang"      // inspections of a pod begin to hang
	opHeal       opKind = "heal"      // and go on
)

func (o op) String() string {
	return fmt.Sprintf("%s pod=%s id=%s state=%s wait=%v", o.kind, o.uid, o.id, o.state, o.wait)
}

// The names are few, so that things happen to the same pods and containers.
var (
	someUIDs  = []types.UID{"a", "b", "c", "d"}
	someWaits = []time.Duration{
		300 * time.Millisecond, time.Second, time.Minute,
		3*time.Minute - time.Millisecond, 3 * time.Minute, 3*time.Minute + time.Millisecond,
	}
)

// anyHistory draws histories of whatever a listing may show, possible or not: any
// state may follow any other.
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

// apply makes an op happen to the node, if it is one that happens to nodes.
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
