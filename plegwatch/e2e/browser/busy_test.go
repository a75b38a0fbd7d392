package browser_test

import (
	"context"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
)

// mainThread can use these two clocks. On a busy machine the thread waits for a CPU, so wallTime
// measures more than cpuTime.
const (
	cpuTime  = performance.EnableTimeDomainThreadTicks
	wallTime = performance.EnableTimeDomainTimeTicks
)

// mainThread measures for a time d, and returns how long the page's main thread works in each
// second. Scripts, styles, layout and painting count as work.
func mainThread(t *testing.T, tab context.Context, clock performance.EnableTimeDomain, d time.Duration) time.Duration {
	t.Helper()
	var before, after float64
	err := chromedp.Do(tab, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		enable := performance.EnableParams{TimeDomain: clock}
		if _, err := cdp.Call(ctx, target, performance.Enable, enable); err != nil {
			return err
		}
		var err error
		if before, err = taskDuration(ctx, target); err != nil {
			return err
		}
		time.Sleep(d)
		if after, err = taskDuration(ctx, target); err != nil {
			return err
		}
		// The next call of mainThread may use another clock.
		_, err = cdp.Call(ctx, target, performance.Disable, cdp.Empty{})
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration((after - before) / d.Seconds() * float64(time.Second))
}

// taskDuration returns how many seconds the main thread has worked in all.
func taskDuration(ctx context.Context, target *chromedp.Target) (seconds float64, err error) {
	metrics, err := cdp.Call(ctx, target, performance.GetMetrics, cdp.Empty{})
	if err != nil {
		return 0, err
	}
	for _, m := range metrics.Metrics {
		if m.Name == "TaskDuration" {
			seconds = m.Value
		}
	}
	return seconds, nil
}
