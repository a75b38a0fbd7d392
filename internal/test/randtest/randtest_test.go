package randtest_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kubepleg/pleg/internal/test/randtest"
)

func TestEachHistoryHasASeedOfItsOwn(t *testing.T) {
	seen := make(map[uint64]bool)
	randtest.Check(t, 20, func(t *testing.T, r *rand.Rand) {
		n := r.Uint64()
		if seen[n] {
			t.Fatal("the same history twice")
		}
		seen[n] = true
	})
}

func TestShrink(t *testing.T) {
	history := make([]int, 100)
	for i := range history {
		history[i] = i
	}
	fails := func(h []int) bool { return slices.Contains(h, 17) && slices.Contains(h, 71) }
	if got := randtest.Shrink(history, fails); !slices.Equal(got, []int{17, 71}) {
		t.Error(got)
	}
	if got := randtest.Shrink(history, func([]int) bool { return true }); len(got) != 0 {
		t.Error(got)
	}
}
