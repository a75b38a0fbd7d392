package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// version and revision are set by the linker in a release build.
var version, revision string

// build identifies the source that the program was built from.
type build struct{ version, revision string }

// buildOf returns the build of this program. A build from a clone has the version "devel". It has a
// revision only if Go could read it from git.
func buildOf() build {
	b := build{version: cmp.Or(version, "devel")}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.revision = s.Value + b.revision
			case s.Key == "vcs.modified" && s.Value == "true":
				b.revision += "-dirty"
			}
		}
	}
	b.revision = cmp.Or(revision, b.revision, "unknown")
	return b
}

func (b build) text() string {
	return fmt.Sprintf("%s %s (revision %s, %s, %s/%s)", program, b.version, b.revision, runtime.Version(),
		runtime.GOOS, runtime.GOARCH)
}

// gauge returns the metric pleg_build_info, which names the version and the revision.
func (b build) gauge() prometheus.Collector {
	return constant("pleg_build_info", "The build of the agent. The value is always 1.",
		prometheus.Labels{"version": b.version, "revision": b.revision, "goversion": runtime.Version()})
}

// constant returns a gauge with the value 1 that carries its information in labels.
func constant(name, help string, labels prometheus.Labels) prometheus.Collector {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	gauge.Set(1)
	return gauge
}
