package kubelet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSameAfterFailures lets inspections fail and recover. Here, the generators differ on purpose
// (rule 8). The kubelet's generator withholds a pod's events until an inspection succeeds. The
// library's generator sends the events at once.
//
// The library's events must equal those of a second kubelet whose inspections never fail. While
// inspections of a pod fail, both caches must return the same error. The library's cache must also
// return the last good status. When inspections succeed again, both must agree on the last events
// of each container and on the cached status.
func TestSameAfterFailures(t *testing.T) {
	histories := histories([]opKind{
		opSet, opSet, opSet, opSet, opRemove, opWait, opRelist, opRelist, opRelist, opBreak, opMend,
	}, []string{created, running, exited})
	rapid.Check(t, func(rt *rapid.T) {
		history := forwards(histories.Draw(rt, "history"))
		if err := inBubble(t, func() error { return runThroughFailures(history) }); err != nil {
			rt.Fatal(err)
		}
	})
}

// forwards returns the history without the steps that take a container back to an earlier state.
// No runtime makes such steps, and a kubelet does not see them while inspections fail.
func forwards(history []op) []op {
	rank := map[string]int{created: 1, running: 2, exited: 3}
	at := make(map[string]int)
	var possible []op
	for _, o := range history {
		switch o.kind {
		case opSet:
			if rank[o.state] < at[o.id] {
				continue
			}
			at[o.id] = rank[o.state]
		case opRemove:
			// The containers of a removed pod never come back, so their later steps are left out.
			for id := range at {
				if id[:1] == string(o.uid) {
					at[id] = len(rank) + 1
				}
			}
		}
		possible = append(possible, o)
	}
	return possible
}

// failing runs both generators on a node with failing inspections. A second kubelet, perfect, runs
// on the same node without failures.
type failing struct {
	node    *node
	kubelet *kubeletSide
	perfect *kubeletSide
	here    *plegSide
	// failed contains the pods with at least one failed inspection. lastGood contains each pod's
	// cached content after its last successful inspection.
	failed   map[types.UID]bool
	lastGood map[types.UID]content
	// kubeletSent and sent are the states according to the events of the two generators.
	kubeletSent, sent map[types.UID]amount
}

// amount is the state of a pod after its events: the type of the last event of each container that
// was not removed.
type amount map[string]string

func addUp(sent map[types.UID]amount, events []event) {
	for _, e := range events {
		if sent[e.UID] == nil {
			sent[e.UID] = make(amount)
		}
		switch e.Type {
		case "ContainerRemoved":
			delete(sent[e.UID], e.Container)
		case podSync:
		default:
			sent[e.UID][e.Container] = e.Type
		}
	}
}

func runThroughFailures(history []op) error {
	n := newNode()
	f := &failing{
		node: n, kubelet: newKubeletSide(n, 1000), perfect: newKubeletSide(n, 1000), here: newPLEGSide(n, 1000),
		failed: make(map[types.UID]bool), lastGood: make(map[types.UID]content),
		kubeletSent: make(map[types.UID]amount), sent: make(map[types.UID]amount),
	}
	defer synctest.Wait()
	defer f.here.generator.Stop()
	for i, o := range history {
		n.apply(o)
		switch o.kind {
		case opWait:
			time.Sleep(o.wait)
		case opRelist:
			if err := f.relist(); err != nil {
				return fmt.Errorf("after step %d (%v): %w", i, o, err)
			}
		}
	}
	return nil
}

func (f *failing) relist() error {
	f.kubelet.generator.Relist(context.Background())
	_ = f.here.generator.Relist(context.Background())
	broken := f.node.inspectErr
	f.node.inspectErr = nil
	f.perfect.generator.Relist(context.Background())
	f.node.inspectErr = broken

	ofKubelet, here := f.kubelet.events(), f.here.events()
	want, _ := byPod(f.perfect.events())
	got, _ := byPod(here)
	if d := diff(want, got); d != "" {
		return fmt.Errorf("events of a pod differ (-kubelet that does not fail +here):\n%s", d)
	}
	addUp(f.kubeletSent, ofKubelet)
	addUp(f.sent, here)
	for _, uid := range someUIDs {
		if err := f.samePod(uid); err != nil {
			return fmt.Errorf("pod %s: %w", uid, err)
		}
	}
	return nil
}

func (f *failing) samePod(uid types.UID) error {
	want, wantErr := f.kubelet.get(uid)
	got, err := f.here.get(uid)
	if !errors.Is(err, wantErr) {
		return fmt.Errorf("the error in the cache is %w in the kubelet, %w here", wantErr, err)
	}
	if err != nil {
		f.failed[uid] = true
		if good, has := f.lastGood[uid]; has {
			if d := diff(good, got); d != "" {
				return fmt.Errorf("the last good status has changed (-good +here):\n%s", d)
			}
		}
		return nil
	}
	f.lastGood[uid] = got
	if f.node.pod(uid) == nil {
		delete(f.lastGood, uid)
	}
	if d := diff(f.kubeletSent[uid], f.sent[uid]); d != "" {
		return fmt.Errorf("the sums of the events differ (-kubelet +here):\n%s", d)
	}
	if f.failed[uid] { // the kubelet may have lost the addresses (rule 11)
		want.IPs, got.IPs = nil, nil
	}
	if d := diff(want, got); d != "" {
		return fmt.Errorf("the caches differ (-kubelet +here):\n%s", d)
	}
	return nil
}
