package pleg

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// withoutKubelet is a collector without the metrics that have a kubelet's name.
type withoutKubelet struct{ prometheus.Collector }

// Describe implements prometheus.Collector.
func (w withoutKubelet) Describe(ch chan<- *prometheus.Desc) {
	filter(ch, w.Collector.Describe, func(d *prometheus.Desc) bool { return !hasKubeletName(d) })
}

// Collect implements prometheus.Collector.
func (w withoutKubelet) Collect(ch chan<- prometheus.Metric) {
	filter(ch, w.Collector.Collect, func(m prometheus.Metric) bool { return !hasKubeletName(m.Desc()) })
}

// hasKubeletName reports whether a metric has a name that a kubelet's registry may have
// too. Only the printed form of a Desc has its name.
func hasKubeletName(d *prometheus.Desc) bool {
	return strings.HasPrefix(d.String(), `Desc{fqName: "kubelet_`)
}

// filter passes on what send sends and keep wants. Both are called in the caller's goroutine,
// where a registry recovers a collector that panics.
func filter[T any](ch chan<- T, send func(chan<- T), keep func(T) bool) {
	all, sent := make(chan T), []T(nil)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for v := range all {
			sent = append(sent, v)
		}
	})
	func() {
		defer receiving.Wait()
		defer close(all)
		send(all)
	}()
	for _, v := range sent {
		if keep(v) {
			ch <- v
		}
	}
}
