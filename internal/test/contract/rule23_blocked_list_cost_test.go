//go:build darwin || linux

package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/plegtest"
)

// roundsCost returns the CPU time per inspection while a list is stuck, on a node with the given
// number of pods. The result is the lowest of several attempts.
func roundsCost(t *testing.T, pods int) (least time.Duration) {
	t.Helper()
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.setSingles(pods)
			n.start()
			defer n.blockLists()()
			time.Sleep(3 * time.Second)
			n.ResetCalls()
			began := usedCPU(t)
			time.Sleep(4 * time.Second)
			each := (usedCPU(t) - began) / time.Duration(max(1, n.Calls(plegtest.GetPodStatus)))
			if least == 0 || each < least {
				least = each
			}
		})
	}
	return least
}

// Rule 23: while a list is stuck, the cost of an inspection does not depend on the number of pods.
func TestRule23CostOfARound(t *testing.T) {
	const few, many, most = 200, 4_000, 8
	small, large := roundsCost(t, few), roundsCost(t, many)
	if large > most*small {
		t.Errorf("an inspection takes %v on a node of %d pods, and %v on one of %d", small, few, large, many)
	}
	t.Logf("%v of %d pods, %v of %d", small, few, large, many)
}
