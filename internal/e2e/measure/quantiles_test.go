package measure_test

import (
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

func TestQuantile(t *testing.T) {
	var hundred measure.Samples
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for _, c := range []struct {
		samples measure.Samples
		q       float64
		want    time.Duration
	}{
		{nil, 0.5, 0},
		{measure.Samples{7}, 0.01, 7},
		{measure.Samples{7}, 0.99, 7},
		{measure.Samples{3, 1, 2}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.9, 90},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := c.samples.Quantile(c.q); got != c.want {
			t.Errorf("quantile %v of %d samples: %v, want %v", c.q, len(c.samples), got, c.want)
		}
	}
}
