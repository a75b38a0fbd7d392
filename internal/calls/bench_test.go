package calls_test

import (
	"context"
	"testing"

	"github.com/kubepleg/pleg/internal/calls"
)

// BenchmarkGo is the cost of a call to a runtime that costs nothing, with eight in
// flight: from Go to done, including the switches between goroutines.
func BenchmarkGo(b *testing.B) {
	for _, c := range []struct {
		name   string
		method func(ctx context.Context) error
	}{
		{"plain", returnsNil},
		{"watched", func(ctx context.Context) error { ctx.Done(); return nil }},
	} {
		b.Run(c.name, func(b *testing.B) {
			g := calls.NewGroup[int]()
			defer g.Rest()
			const inFlight = 8
			returned := make(chan struct{}, inFlight)
			for range inFlight {
				returned <- struct{}{}
			}
			done := func(int, error, bool) { returned <- struct{}{} }
			info := calls.Info{Method: "GetPodStatus", PodUID: "pod-00001", Object: object("pod default/pod-00001")}
			b.ReportAllocs()
			key := 0
			for b.Loop() {
				<-returned
				key++
				g.Go(key, info, c.method, done)
			}
			for range inFlight {
				<-returned
			}
		})
	}
	// naive is a new goroutine with a context of its own, and nothing else.
	b.Run("naive", func(b *testing.B) {
		const inFlight = 8
		returned := make(chan struct{}, inFlight)
		for range inFlight {
			returned <- struct{}{}
		}
		b.ReportAllocs()
		for b.Loop() {
			<-returned
			ctx, cancel := context.WithCancelCause(context.Background())
			go func() {
				_ = returnsNil(ctx)
				cancel(nil)
				returned <- struct{}{}
			}()
		}
		for range inFlight {
			<-returned
		}
	})
}
