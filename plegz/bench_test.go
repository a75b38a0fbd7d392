package plegz_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// BenchmarkAnswer measures a JSON answer and a text answer about a thousand pods. Between the
// requests nothing changes, as in a flood of requests.
func BenchmarkAnswer(b *testing.B) {
	n := &node{Runtime: plegtest.NewRuntime(), cache: pleg.NewCache()}
	n.g = pleg.NewGenericPLEG(n.Runtime, 0, time.Hour, n.cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	for i := range 1000 {
		n.setPod("team", fmt.Sprint("pod-", i), plegtest.Running(fmt.Sprint("container-", i)))
	}
	n.g.Start(b.Context())
	b.Cleanup(n.g.Stop)
	_ = n.g.Relist(b.Context())
	n.Handler = plegz.Handler(n.g)
	for _, format := range []string{"json", "text"} {
		b.Run(format, func(b *testing.B) {
			for b.Loop() {
				n.get("/?format=" + format)
			}
		})
	}
}
