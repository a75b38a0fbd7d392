package scenario

import (
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// node makes the runtime, the cache and the generator.
func node(s *scenario, c command) string {
	if s.g != nil {
		c.fatalf("it must be the first command")
	}
	s.clock = clock.RealClock{}
	if c.str("clock") == "fake" {
		s.fake = clocktesting.NewFakeClock(time.Now())
		s.clock = s.fake
	}
	s.began = s.clock.Now()
	s.runtime, s.cache = plegtest.NewRuntime(plegtest.WithClock(s.clock)), pleg.NewCache()
	s.metrics = prometheus.NewRegistry()
	s.garbage, s.subscriptions = make(garbage), make(map[string]*subscription)

	var runtime pleg.Runtime = &recordingRuntime{s}
	if c.has("companions") {
		runtime = &recordingCompanions{recordingRuntime{s}}
		s.runtime.EmitOnChange(c.str("companions") != "silent")
	}
	s.g = pleg.NewGenericPLEG(
		runtime, c.number("capacity", 0), c.duration("period"), s.cache, s.clock,
		pleg.WithLogger(logr.Discard()),
		pleg.WithRegisterer(s.metrics),
		pleg.WithRelistThreshold(c.duration("threshold")),
		pleg.WithRuntimeRequestTimeout(c.duration("timeout")),
		pleg.WithInspectionWorkers(c.number("workers", 0)),
	)
	s.watch = s.g.Watch()
	return ""
}
