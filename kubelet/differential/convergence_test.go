package kubelet

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSameInTheEnd starts the kubelet's generator and the library's. Pods change, and inspections
// and lists block or fail. Each generator may send its events at its own times. Five minutes after
// the faults, both must agree on three things: the last events of each container, the cached
// statuses, and the health.
func TestSameInTheEnd(t *testing.T) {
	histories := histories([]opKind{
		opSet, opSet, opSet, opSet, opRemove, opWait, opWait, opBreak, opMend, opBlock, opHeal, opFailList,
	}, []string{created, running, exited})
	rapid.Check(t, func(rt *rapid.T) {
		history := forwards(histories.Draw(rt, "history"))
		withGetter := rapid.Bool().Draw(rt, "canListOnePod")
		if err := inBubble(t, func() error { return runToTheEnd(history, withGetter) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func runToTheEnd(history []op, withGetter bool) error {
	n := newNode()
	k, p := newKubeletSide(n, 10000), newPLEGSide(n, 10000)
	if withGetter {
		p = newPLEGSideOf(&getterRuntime{plegRuntime{n}}, 10000)
	}
	k.generator.Start(context.Background())
	p.generator.Start(context.Background())
	synctest.Wait()
	defer synctest.Wait()
	defer k.generator.Stop()
	defer p.generator.Stop()
	for _, o := range history {
		n.apply(o)
		switch o.kind {
		case opWait:
			time.Sleep(o.wait)
		case opFailList:
			n.listErr = errBroken
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			n.listErr = nil
		case opSet:
			p.generator.RequestRelist(o.uid)
		}
		synctest.Wait()
	}
	for _, uid := range someUIDs {
		n.apply(op{kind: opMend, uid: uid})
		n.apply(op{kind: opHeal, uid: uid})
	}
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	return sameInTheEnd(k, p)
}

func sameInTheEnd(k *kubeletSide, p *plegSide) error {
	want, got := make(map[types.UID]amount), make(map[types.UID]amount)
	addUp(want, k.events())
	addUp(got, p.events())
	for _, uid := range someUIDs {
		if d := diff(want[uid], got[uid]); d != "" {
			return fmt.Errorf("the sums of the events of pod %s differ (-kubelet +here):\n%s", uid, d)
		}
		wantContent, wantErr := k.get(uid)
		content, err := p.get(uid)
		wantContent.IPs, content.IPs = nil, nil // addresses may differ (rule 11)
		if d := diff(answer{wantContent, wantErr}, answer{content, err}); d != "" {
			return fmt.Errorf("the caches differ in pod %s (-kubelet +here):\n%s", uid, d)
		}
	}
	return sameHealth(k, p)
}
