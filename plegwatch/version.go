package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// version and revision are set by the build of a release.
var version, revision string

// build is what the program was built from.
type build struct{ version, revision string }

// buildOf returns what this program was built from. A build in a clone has no version, and has a
// revision if Go asked git.
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

// gauge is the metric that names what the program was built from.
func (b build) gauge() prometheus.Collector {
	return constant("pleg_build_info", "The build of the agent. The value is always 1.",
		prometheus.Labels{"version": b.version, "revision": b.revision, "goversion": runtime.Version()})
}

// constant is a gauge of 1, whose labels have the information.
func constant(name, help string, labels prometheus.Labels) prometheus.Collector {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	gauge.Set(1)
	return gauge
}
