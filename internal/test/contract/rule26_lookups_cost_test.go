//go:build darwin || linux

package contract_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/plegtest"
)

// sharedAddressCost returns the CPU time per pod when pods with one shared address are removed, and
// that address is looked up. The result is the lower of two attempts, without garbage collection.
func sharedAddressCost(t *testing.T, pods int) (least time.Duration) {
	t.Helper()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			for i := range pods {
				uid := types.UID(fmt.Sprintf("pod-%05d", i))
				n.SetPod(plegtest.NewPod(uid))
				n.SetIPs(uid, "10.0.0.1")
			}
			n.relist()
			if got := len(n.cache.ByIP("10.0.0.1")); got != pods {
				t.Errorf("%d pods have the address", got)
			}
			began := usedCPU(t)
			n.SetPods()
			n.relist()
			n.cache.ByIP("10.0.0.1")
			time.Sleep(2 * time.Minute) // after this, the look-ups have forgotten the pods
			n.relist()
			if each := (usedCPU(t) - began) / time.Duration(pods); least == 0 || each < least {
				least = each
			}
			if got := len(n.cache.ByIP("10.0.0.1")); got != 0 {
				t.Errorf("%d pods have the address later", got)
			}
		})
	}
	return least
}

// Pods on the host's network share its address. The cost per pod does not depend on the number of
// these pods, even if all of them are removed at once.
func TestLookupsOfASharedAddress(t *testing.T) {
	const few, many, most = 250, 8_000, 12
	small, large := sharedAddressCost(t, few), sharedAddressCost(t, many)
	if large > most*small {
		t.Errorf("a pod takes %v beside %d of its address, and %v beside %d", small, few, large, many)
	}
	t.Logf("%v beside %d, %v beside %d", small, few, large, many)
}
