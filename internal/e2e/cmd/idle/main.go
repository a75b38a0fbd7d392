// Command idle measures on a real containerd how much CPU time this process uses to watch an idle
// node. It counts the CPU time of relists that find no change. It compares delta decoding of lists,
// generated decoding, exit events, and the same process without a generator.
//
//	go run ./cmd/idle
//
// It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var (
	pods    = flag.Int("pods", 150, "pods of one container")
	relists = flag.Int("relists", 60, "relists to measure over")
	period  = flag.Duration("period", time.Second, "the relist period")
)

func main() {
	testnode.RegisterFlags()
	measure.Main(run)
}

// mode is a way to watch the node. The field connect is nil if nothing watches the node.
type mode struct {
	name    string
	connect func(ctx context.Context, endpoint string) (*cri.Runtime, func(), error)
}

var modes = []mode{
	{"no generator", nil},
	{"plain lists, generated decoding", connectGenerated},
	{"plain lists, delta decoding", connectWith(cri.WithPlainLists(), cri.WithoutExitEvents())},
	{"streaming lists, delta decoding", connectWith(cri.WithoutExitEvents())},
	{"the same, with exit events", connectWith()},
}

func run(ctx context.Context) (err error) {
	daemon, err := testnode.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, daemon.Close()) }()
	client, err := daemon.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	fmt.Fprintf(os.Stderr, "starting %d pods\n", *pods)
	var group errgroup.Group
	group.SetLimit(4)
	for i := range *pods {
		group.Go(func() error {
			pod, err := client.RunPod(ctx, "idle", fmt.Sprintf("pod-%03d", i))
			if err != nil {
				return err
			}
			_, err = client.Run(ctx, pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "CPU time of the watching process over %d idle relists every %v, %d pods\t\tper relist\t"+
		"allocations per relist\t\n", *relists, *period, *pods)
	for _, m := range modes {
		fmt.Fprintln(os.Stderr, m.name)
		c, err := m.measure(ctx, daemon.Endpoint())
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		n := float64(*relists)
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f\t\n", m.name, measure.Milliseconds(c.cpu),
			measure.Milliseconds(time.Duration(float64(c.cpu)/n)), float64(c.mallocs)/n)
	}
	return w.Flush()
}

// cost is the CPU time and the number of allocations during the relists.
type cost struct {
	cpu     time.Duration
	mallocs uint64
}

func (m mode) measure(ctx context.Context, endpoint string) (cost, error) {
	if m.connect == nil {
		return span(ctx)
	}
	rt, done, err := m.connect(ctx, endpoint)
	if err != nil {
		return cost{}, err
	}
	defer done()
	g := pleg.NewGenericPLEG(rt, 4**pods, *period, pleg.NewCache(), clock.RealClock{})
	events := g.Watch()
	g.Start(ctx)
	defer g.Stop()
	// The first relist inspects every pod, so the measurement starts after these relists.
	for range 2 {
		if err := g.Relist(ctx); err != nil {
			return cost{}, err
		}
	}
	if seen := len(events); seen != 2**pods {
		return cost{}, fmt.Errorf("%d events of %d sandboxes and containers", seen, 2**pods)
	}
	c, err := span(ctx)
	if err == nil && len(events) != 2**pods {
		err = errors.New("the node was not idle")
	}
	return c, err
}

// span measures the CPU time and the allocations of this process while the relists run.
func span(ctx context.Context) (cost, error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began, err := measure.CPU()
	if err != nil {
		return cost{}, err
	}
	if err := measure.Wait(ctx, time.Duration(*relists)**period); err != nil {
		return cost{}, err
	}
	ended, err := measure.CPU()
	if err != nil {
		return cost{}, err
	}
	runtime.ReadMemStats(&after)
	return cost{cpu: ended - began, mallocs: after.Mallocs - before.Mallocs}, nil
}

func connectWith(opts ...cri.Option) func(context.Context, string) (*cri.Runtime, func(), error) {
	return func(ctx context.Context, endpoint string) (*cri.Runtime, func(), error) {
		rt, err := cri.Connect(ctx, endpoint, opts...)
		if err != nil {
			return nil, nil, err
		}
		return rt, func() { rt.Close() }, nil
	}
}

// connectGenerated connects the adapter through a client that decodes lists with generated code.
func connectGenerated(_ context.Context, endpoint string) (*cri.Runtime, func(), error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, nil, err
	}
	return cri.NewRuntime(generatedLists{conn}, cri.WithPlainLists()), func() { conn.Close() }, nil
}

// generatedLists is a connection that ignores call options. The adapter selects its own decoding by
// a call option, so this connection uses the generated decoding.
type generatedLists struct{ *grpc.ClientConn }

func (c generatedLists) Invoke(ctx context.Context, method string, request, reply any, _ ...grpc.CallOption) error {
	return c.ClientConn.Invoke(ctx, method, request, reply)
}
