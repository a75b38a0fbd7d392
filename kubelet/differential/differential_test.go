package kubelet

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSameHistories plays random histories of a node to the kubelet's generator and the library's.
// After every step, four results must be the same: the events of each pod and their order, the
// content of the caches, the answers to readers, and the health.
//
// The histories leave out cases on the list of deviations: inspections that fail or block, full
// channels, bad data, pods without containers, and minimum times equal to the stamp of a relist.
func TestSameHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		history := anyHistory().Draw(rt, "history")
		if err := inBubble(t, func() error { return runBoth(history) }); err != nil {
			rt.Fatal(err)
		}
	})
}

// inBubble calls the function run in a synctest bubble and returns run's error. The caller fails
// outside the bubble, where rapid can shrink the history.
func inBubble(t *testing.T, run func() error) (err error) {
	synctest.Test(t, func(*testing.T) { err = run() })
	return err
}

// both runs the kubelet's generator and the library's on one node.
type both struct {
	node    *node
	kubelet *kubeletSide
	here    *plegSide
	// ctx ends after the history, and releases the library's readers that are still blocked.
	ctx     context.Context
	readers []bothReaders
	// asked are the pods for which a reinspection was requested since the last successful list.
	asked map[types.UID]bool
}

// bothReaders is the same read from both caches.
type bothReaders struct {
	op            op
	kubelet, here <-chan answer
}

func runBoth(history []op) error {
	ctx, cancel := context.WithCancel(context.Background())
	n := newNode()
	b := &both{
		node: n, kubelet: newKubeletSide(n, 1000), here: newPLEGSide(n, 1000), ctx: ctx,
		asked: make(map[types.UID]bool),
	}
	defer synctest.Wait()
	defer b.kubelet.release()
	defer cancel()
	defer b.here.generator.Stop()
	for i, o := range history {
		if err := b.step(o); err != nil {
			return fmt.Errorf("after step %d (%v): %w", i, o, err)
		}
	}
	return nil
}

func (b *both) step(o op) error {
	b.node.apply(o)
	var err error
	switch o.kind {
	case opWait:
		time.Sleep(o.wait)
	case opReinspect:
		if b.reads(o.uid) {
			break // left out: in the library, readers do not wait for a reinspection
		}
		b.kubelet.generator.RequestReinspect(o.uid)
		b.here.generator.RequestReinspect(o.uid)
		b.asked[o.uid] = true
	case opRead:
		if b.asked[o.uid] {
			break // left out: in the library, readers do not wait for a reinspection
		}
		// The nanosecond keeps minTime different from the stamp of a relist.
		minTime := time.Now().Add(-o.wait + time.Nanosecond)
		b.readers = append(b.readers, bothReaders{o, b.kubelet.read(o.uid, minTime), b.here.read(b.ctx, o.uid, minTime)})
	case opRelist:
		err = b.relist()
	case opFailList:
		if len(b.asked) > 0 {
			break // left out: the library inspects at once, the kubelet after the next list
		}
		b.node.listErr = errBroken
		err = b.relist()
		b.node.listErr = nil
	}
	if err != nil {
		return err
	}
	if err := b.sameReaders(); err != nil {
		return err
	}
	return sameHealth(b.kubelet, b.here)
}

// relist makes both generators relist, and compares their events and caches.
func (b *both) relist() error {
	b.kubelet.generator.Relist(context.Background())
	_ = b.here.generator.Relist(context.Background())

	wantOrdered, wantSyncs := byPod(b.kubelet.events())
	ordered, syncs := byPod(b.here.events())
	if d := diff(wantOrdered, ordered); d != "" {
		return fmt.Errorf("events of a pod differ (-kubelet +here):\n%s", d)
	}
	for uid := range wantSyncs {
		if !syncs[uid] {
			return fmt.Errorf("the kubelet sends a PodSync of %s, and here there is none", uid)
		}
	}
	for uid := range syncs {
		if !b.asked[uid] {
			return fmt.Errorf("a PodSync of %s without a request", uid)
		}
	}
	if b.node.listErr == nil {
		clear(b.asked)
	}
	return b.sameContents()
}

func (b *both) sameContents() error {
	for _, uid := range someUIDs {
		want, wantErr := b.kubelet.get(uid)
		got, err := b.here.get(uid)
		if d := diff(answer{want, wantErr}, answer{got, err}); d != "" {
			return fmt.Errorf("the caches differ in pod %s (-kubelet +here):\n%s", uid, d)
		}
	}
	return nil
}

// sameReaders returns an error if the caches answer a reader differently, or if only one answers.
func (b *both) sameReaders() error {
	synctest.Wait()
	var waiting []bothReaders
	for _, r := range b.readers {
		want, wantOK := received(r.kubelet)
		got, ok := received(r.here)
		switch {
		case wantOK != ok:
			return fmt.Errorf("reader (%v): answered by the kubelet %v, here %v", r.op, wantOK, ok)
		case !ok:
			waiting = append(waiting, r)
		default:
			if d := diff(want, got); d != "" {
				return fmt.Errorf("reader (%v) gets another answer (-kubelet +here):\n%s", r.op, d)
			}
		}
	}
	b.readers = waiting
	return nil
}

// reads returns true if a reader of the pod is blocked.
func (b *both) reads(uid types.UID) bool {
	return slices.ContainsFunc(b.readers, func(r bothReaders) bool { return r.op.uid == uid })
}

func received(ch <-chan answer) (answer, bool) {
	select {
	case a := <-ch:
		return a, true
	default:
		return answer{}, false
	}
}
