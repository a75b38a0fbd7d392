package pleg_test

import (
	"os"
	"testing"

	"github.com/kubepleg/pleg/internal/layers"
)

// A file uses only files of its own layer and of lower ones, and no two files of a
// layer use each other, over however many others. So whoever reads from the bottom
// up meets nothing unknown.
func TestLayers(t *testing.T) {
	files := layers.Files{
		Layer: map[string]int{
			"generic.go":   6,
			"reports.go":   6,
			"subscribe.go": 6,
			"handler.go":   6,

			"loop.go":         5,
			"waketimer.go":    5,
			"runtimecalls.go": 5,

			"reconciler.go":  5,
			"requests.go":    5,
			"lists.go":       5,
			"inspections.go": 5,
			"eventstream.go": 5,
			"health.go":      5,

			"lookups.go": 5,

			"inputs.go":      4,
			"outputs.go":     4,
			"suspensions.go": 3,
			"failing.go":     5,
			"relists.go":     5,
			"publisher.go":   4,
			"window.go":      4,
			"shown.go":       3,
			"publication.go": 3,
			"cachewriter.go": 4,
			"podrecords.go":  4,
			"cache.go":       4,
			"metrics.go":     4,

			"kubeletmetrics.go": 4,

			"updates.go":      3,
			"exits.go":        3,
			"initial.go":      3,
			"laststatuses.go": 3,
			"diff.go":         3,
			"tally.go":        3,
			"agreement.go":    3,
			"finder.go":       3,
			"validate.go":     3,
			"cacheindex.go":   3,

			"podstatuses.go": 3,

			"pods.go":         2,
			"containerids.go": 2,
			"options.go":      2,
			"pleg.go":         2,

			"runtime.go": 1,
			"stamp.go":   1,
		},
		// The shell around the reconciler, and the reconciler, need more than one file.
		Spread: []string{"GenericPLEG", "reconciler"},
	}
	for _, problem := range files.Problems(os.DirFS(".")) {
		t.Error(problem)
	}
}

// The packages that decide which call to make next know no pod, and no clock, log
// or metric. Of one another, only the schedule uses the back-off.
func TestInternalPackagesStandAlone(t *testing.T) {
	imports := layers.Imports{
		Module: "github.com/kubepleg/pleg",
		Packages: map[string][]string{
			"internal/schedule":  {"internal/backoff"},
			"internal/broadcast": nil,
			"internal/calls":     nil,
			"internal/backoff":   nil,
			"internal/inbox":     nil,
		},
		Forbidden: []string{
			"k8s.io/utils/clock", "k8s.io/klog", "github.com/go-logr", "github.com/prometheus", "k8s.io/cri-api",
		},
	}
	for _, problem := range imports.Problems(os.DirFS(".")) {
		t.Error(problem)
	}
}
