package pleg_test

import (
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/plegtest"
)

// A pod without transitions is known and inspected all the same.
func TestPodWithoutTransitionsIsInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"), bare("b", plegtest.Created("b1")))
		events := n.g.Watch()
		n.g.Relist()
		want(t, "events", read(events))
		if got := len(n.cache.GetAll()); got != 2 {
			t.Errorf("%d pods in the cache", got)
		}
	})
}
