package contract_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// A generator has synced when each pod of the first full list that succeeded is inspected,
// has failed to be, or is slow; and stays so.
func TestHasSynced(t *testing.T) {
	for name, c := range map[string]struct {
		fault   plegtest.Fault
		after   time.Duration
		failing int // pods in the report then
	}{
		"all are inspected": {after: 0},
		"one takes a while": {fault: plegtest.Fault{Delay: 300 * time.Millisecond}, after: 300 * time.Millisecond},
		"one fails":         {fault: plegtest.Fault{Err: errors.New("broken")}, after: 0, failing: 1},
		"one hangs":         {fault: plegtest.Fault{Hang: true}, after: time.Second, failing: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(pods(3)...)
				if c.fault.Delay > 0 || c.fault.Hang || c.fault.Err != nil {
					c.fault.Method, c.fault.PodUID = plegtest.GetPodStatus, "pod-00001"
					defer n.Inject(c.fault)()
				}
				if n.g.HasSynced() {
					t.Error("synced before Start")
				}
				began := time.Now()
				n.g.Start(t.Context())
				defer n.g.Stop()
				if err := n.g.WaitForSync(t.Context()); err != nil || time.Since(began) != c.after {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if got := n.g.HealthReport().FailingPods; len(got) != c.failing {
					t.Errorf("failing: %v", got)
				}
				n.SetPod(bare("later", plegtest.Running("l1")))
				defer n.Hang(plegtest.GetPodStatus, "later")()
				time.Sleep(time.Second)
				n.g.Stop()
				if !n.g.HasSynced() {
					t.Error("not synced any more")
				}
			})
		})
	}
}

// Without a runtime there is nothing to wait for but a node without pods.
func TestHasSyncedWithoutPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.relist()
		if !n.g.HasSynced() || n.g.WaitForSync(t.Context()) != nil {
			t.Error("not synced")
		}
	})
}

// Who gives up waiting is told what was awaited.
func TestWaitForSyncSaysWhatIsAwaited(t *testing.T) {
	for name, c := range map[string]struct {
		start bool
		fault plegtest.Fault
		says  string
	}{
		"not started": {says: "not running"},
		"a list fails": {
			true, plegtest.Fault{Method: plegtest.GetPods, Err: errors.New("no such socket")}, "no such socket",
		},
		"a list hangs": {
			true, plegtest.Fault{Method: plegtest.GetPods, Hang: true}, "GetPods has been running for 500ms",
		},
		"inspections hang": {
			true, plegtest.Fault{Method: plegtest.GetPodStatus, Hang: true}, "GetPodStatus of pod default/pod-00000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNodeOf(t, polling)
				n.SetPods(pods(3)...)
				if c.fault.Method != "" {
					defer n.Inject(c.fault)()
				}
				if c.start {
					n.g.Start(t.Context())
					defer n.g.Stop()
				}
				ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errors.New("impatient"))
				defer cancel()
				err := n.g.WaitForSync(ctx)
				if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, context.Cause(ctx)) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// lastMoment is a context that has ended, and in which something happens just before that
// is seen.
type lastMoment struct {
	context.Context
	happens func()
}

func (c lastMoment) Done() <-chan struct{} {
	c.happens()
	return c.Context.Done()
}

// Who waits until the instant at which the generator syncs is told that it has.
func TestWaitForSyncEndsAsItSyncs(t *testing.T) {
	for range 30 {
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.g.WaitForSync(lastMoment{ctx, n.relist}); err != nil {
			t.Fatalf("it has synced: %v", err)
		}
	}
}

// Pods are those that were listed last, inspected or not.
func TestPodsAsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		names := func() []string {
			var names []string
			for _, p := range n.g.Pods() {
				names = append(names, string(p.ID))
			}
			return names
		}
		want(t, "before Start", names())
		n.SetPods(bare("b", plegtest.Running("b1")), bare("c"), bare("a", plegtest.Running("a1")))
		defer n.Hang(plegtest.GetPodStatus, "b")()
		n.start()
		want(t, "by UID, not inspected yet or without containers", names(), "a", "b", "c")
		if pod := n.g.Pods().FindPodByID("b"); pod == nil || pod.Containers[0].ID.ID != "b1" {
			t.Errorf("got %v", pod)
		}
		if _, known, err := n.cache.Lookup("b"); !known || err != nil {
			t.Errorf("not inspected yet: %v, %v", known, err)
		}
		n.RemovePod("a")
		time.Sleep(1100 * time.Millisecond)
		want(t, "without the one that is gone", names(), "b", "c")
	})
}

var _ interface {
	HasSynced() bool
	WaitForSync(context.Context) error
	Pods() pleg.Pods
} = (*pleg.GenericPLEG)(nil)
