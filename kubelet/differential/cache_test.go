package kubelet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"pgregory.net/rapid"

	"github.com/kubepleg/pleg"
)

// cacheOp is a call of a method that both caches implement.
type cacheOp struct {
	kind cacheOpKind
	uid  types.UID
	// back is the present time minus the stamp or the minimum time of the call.
	back time.Duration
	fail bool
}

type cacheOpKind string

const (
	cacheSet      cacheOpKind = "Set"
	cacheObserved cacheOpKind = "SetObservedTime"
	cacheDelete   cacheOpKind = "Delete"
	cacheUpdate   cacheOpKind = "UpdateTime"
	cacheRead     cacheOpKind = "GetNewerThan"
)

func (o cacheOp) String() string {
	return fmt.Sprintf("%s pod=%s back=%v fail=%v", o.kind, o.uid, o.back, o.fail)
}

// TestSameCaches calls the methods of both caches with random arguments. In both caches, Get must
// return the same, and the same readers must get the same answers. Three cases are left out,
// because the caches differ in them: a stamp that is older than the pod's last stamp,
// SetObservedTime for an unknown pod, and an error without a status.
func TestSameCaches(t *testing.T) {
	ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) cacheOp {
		return cacheOp{
			kind: rapid.SampledFrom([]cacheOpKind{cacheSet, cacheSet, cacheObserved, cacheDelete, cacheUpdate, cacheRead,
				cacheRead, cacheRead}).Draw(t, "kind"),
			uid:  rapid.SampledFrom(someUIDs).Draw(t, "uid"),
			back: time.Duration(rapid.IntRange(-2, 8).Draw(t, "back")) * time.Second,
			fail: rapid.Bool().Draw(t, "fail"),
		}
	}), 1, 80)
	rapid.Check(t, func(rt *rapid.T) {
		calls := ops.Draw(rt, "calls")
		if err := inBubble(t, func() error { return runCaches(calls) }); err != nil {
			rt.Fatal(err)
		}
	})
}

// twoCaches calls the same methods of the two caches.
type twoCaches struct {
	both // the caches and their blocked readers
	// last is the newest stamp of each pod. The empty UID has the newest stamp of UpdateTime.
	last   map[types.UID]time.Time
	known  map[types.UID]bool
	number int
}

func runCaches(calls []cacheOp) error {
	ctx, cancel := context.WithCancel(context.Background())
	c := &twoCaches{
		both: both{kubelet: &kubeletSide{cache: kubecontainer.NewCache()}, here: &plegSide{cache: pleg.NewCache()},
			ctx: ctx},
		last:  make(map[types.UID]time.Time),
		known: make(map[types.UID]bool),
	}
	defer synctest.Wait()
	defer c.kubelet.release()
	defer cancel()
	for i, o := range calls {
		time.Sleep(time.Second)
		c.call(o)
		if err := errors.Join(c.sameContents(), c.sameReaders()); err != nil {
			return fmt.Errorf("after call %d (%v): %w", i, o, err)
		}
	}
	return nil
}

func (c *twoCaches) call(o cacheOp) {
	switch o.kind {
	case cacheSet:
		stamp := c.stamp(o.uid, o.back)
		c.number++
		var err error
		if o.fail {
			err = fmt.Errorf("inspection %d: %w", c.number, errBroken)
		}
		name := fmt.Sprint("status ", c.number)
		c.kubelet.cache.Set(o.uid, &kubecontainer.PodStatus{ID: o.uid, Name: name}, err, stamp)
		c.here.cache.Set(o.uid, &pleg.PodStatus{ID: o.uid, Name: name}, err, stamp)
		c.known[o.uid] = true
	case cacheObserved:
		if !c.known[o.uid] {
			return
		}
		stamp := c.stamp(o.uid, o.back)
		c.kubelet.cache.SetObservedTime(o.uid, stamp)
		c.here.cache.SetObservedTime(o.uid, stamp)
	case cacheDelete:
		c.kubelet.cache.Delete(o.uid)
		c.here.cache.Delete(o.uid)
		delete(c.known, o.uid)
	case cacheUpdate:
		stamp := c.stamp("", o.back)
		c.kubelet.cache.UpdateTime(stamp)
		c.here.cache.UpdateTime(stamp)
	case cacheRead:
		minTime := time.Now().Add(-o.back + time.Nanosecond)
		c.readers = append(c.readers, bothReaders{
			op{kind: opRead, uid: o.uid, wait: o.back}, c.kubelet.read(o.uid, minTime), c.here.read(c.ctx, o.uid, minTime),
		})
	}
}

// stamp returns the present time minus back, or the pod's last stamp if that is later.
func (c *twoCaches) stamp(uid types.UID, back time.Duration) time.Time {
	stamp := time.Now().Add(-max(back, 0))
	if c.last[uid].After(stamp) {
		stamp = c.last[uid]
	}
	c.last[uid] = stamp
	return stamp
}
