package overcri_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/kubelet/differential/overcri"
)

func TestMain(m *testing.M) {
	overcri.ServeIfAsked()
	os.Exit(m.Run())
}

// BenchmarkCRIIdleRelist measures an idle relist of the library over CRI: from the bytes on the
// socket to the result that nothing has changed. The parent package measures the kubelet.
func BenchmarkCRIIdleRelist(b *testing.B) {
	for _, n := range []int{110, 1000, 10000} {
		b.Run(fmt.Sprintf("containers=%d/impl=pleg", n), func(b *testing.B) {
			r, err := cri.Connect(b.Context(), overcri.StartServer(b, n), cri.WithLogger(logr.Discard()))
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			g := pleg.NewGenericPLEG(r, 4*n, 0, pleg.NewCache(), clock.RealClock{}, pleg.WithLogger(logr.Discard()))
			events := g.Watch()
			relist := func() { _ = g.Relist(b.Context()) }
			relist()
			sent := len(events)
			if want := n + n/2; sent != want {
				b.Fatalf("%d events of the first relist, want %d", sent, want)
			}
			overcri.Measure(b, relist)
			if len(events) != sent {
				b.Fatalf("%d events of idle relists", len(events)-sent)
			}
			if ok, err := g.Healthy(); !ok {
				b.Fatal(err)
			}
			g.Stop()
		})
	}
}
