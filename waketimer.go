package pleg

import (
	"time"

	"k8s.io/utils/clock"
)

// neverZero is a clock that shows the moment before the zero time in place of that, which
// stands for no time in the generator.
type neverZero struct{ clock.Clock }

func (c neverZero) Now() time.Time {
	if now := c.Clock.Now(); !now.IsZero() {
		return now
	}
	return time.Time{}.Add(-1)
}

// wakeTimer wakes the loop at a time by the clock.
type wakeTimer struct {
	clock clock.Clock
	timer clock.Timer // made when it is first set
	at    time.Time   // what it is set for; zero for nothing
}

// set returns a channel that fires at a time, or before; nil for the zero time. The timer is
// set anew only for an earlier time: to wake once too often costs less than to set it in each
// step. The clock is read again once it is set: a fake clock may have been stepped in between.
func (t *wakeTimer) set(wake time.Time) <-chan time.Time {
	if wake.IsZero() {
		t.stop()
		return nil
	}
	if t.at.IsZero() || wake.Before(t.at) {
		t.stop()
		wait := wake.Sub(t.clock.Now())
		if wait <= 0 {
			return alreadyPassed
		}
		if t.timer == nil {
			t.timer = t.clock.NewTimer(wait)
		} else {
			t.timer.Reset(wait)
		}
		t.at = wake
		if !t.clock.Now().Before(wake) {
			t.stop()
			return alreadyPassed
		}
	}
	return t.timer.C()
}

// fired notes that the channel has.
func (t *wakeTimer) fired() { t.at = time.Time{} }

// stop stops the timer.
func (t *wakeTimer) stop() {
	if t.at.IsZero() {
		return
	}
	t.at = time.Time{}
	if !t.timer.Stop() {
		select {
		case <-t.timer.C():
		default:
		}
	}
}

// alreadyPassed is a channel that is always ready.
var alreadyPassed = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()
