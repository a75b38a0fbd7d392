package backoff

import (
	"testing"
	"testing/synctest"
	"time"
)

// The wait doubles up to the longest, counts from the failure, and is forgiven after twice
// the longest without one.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10*time.Second, time.Minute)
		for _, want := range []time.Duration{0, 10, 20, 40, 60, 60} {
			failed := time.Now()
			wait, over := b.Wait("k", failed)
			if wait != want*time.Second || want > 0 && !over.Equal(failed.Add(wait)) {
				t.Errorf("waits %v until %v, want %v s", wait, over, want)
			}
			time.Sleep(wait)
			if wait, _ := b.Wait("k", failed); wait != 0 {
				t.Errorf("still waits %v", wait)
			}
			b.Next("k", failed)
		}
		if wait, _ := b.Wait("other", time.Now()); wait != 0 {
			t.Errorf("another key waits %v", wait)
		}
		time.Sleep(2*time.Minute + 1)
		if wait, _ := b.Wait("k", time.Now()); wait != 0 {
			t.Errorf("waits %v after a long life", wait)
		}
		b.Next("k", time.Now())
		if wait, _ := b.Wait("k", time.Now()); wait != 10*time.Second {
			t.Errorf("begins anew with %v", wait)
		}
		b.Forget("k")
		if wait, _ := b.Wait("k", time.Now()); wait != 0 {
			t.Errorf("a key that is forgotten waits %v", wait)
		}
	})
}
