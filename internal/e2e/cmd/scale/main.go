// Command scale measures the cost of an agent on nodes of different sizes: CPU time, memory, calls,
// metric series, and the time of a scrape. Two agents run on each node at the same time, in
// processes of their own: plegwatch with exit events, and plegwatch without them. They serve their
// page and metrics. The node is a server of package criserver in this process, with streaming
// lists, an event stream and exit events. The cost of the server is not counted.
//
//	go run ./cmd/scale
//
// It needs no root. docs/BENCHMARKS.md contains the figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var (
	sizes    = flag.String("pods", "110,500", "sizes of the node, in pods of two containers")
	rates    = flag.String("changes", "0,1", "containers that die and are restarted, per second")
	duration = flag.Duration("for", 30*time.Second, "how long each is measured")
	settle   = flag.Duration("settle", 5*time.Second, "how long the agent runs before that")
	scrape   = flag.Duration("scrape", 15*time.Second, "the time between two scrapes")
)

// exitEvents are the values of the agents' flag -exit-events. One agent runs for each value, all at
// the same time.
var exitEvents = []string{cri.DefaultExitsDir, "off"}

func main() { measure.Main(run) }

func run(ctx context.Context) error {
	pods, err := numbers(*sizes)
	if err != nil {
		return fmt.Errorf("-pods: %w", err)
	}
	changes, err := numbers(*rates)
	if err != nil {
		return fmt.Errorf("-changes: %w", err)
	}
	dir, err := os.MkdirTemp("", "pleg-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := testnode.Root(ctx)
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "plegwatch")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Dir, build.Stderr = filepath.Join(root, "plegwatch"), os.Stderr
	build.Env = append(os.Environ(), "GOWORK=off")
	if err := build.Run(); err != nil {
		return fmt.Errorf("building plegwatch: %w", err)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "pods\tchanges/s\texit events\tCPU ms/s\tRSS MiB\tof that anonymous\tcalls/s\t"+
		"series\tscrape KB\tgzipped KB\tscrape ms\t")
	for _, n := range pods {
		for _, rate := range changes {
			costs, err := measured(ctx, program, n, rate)
			if err != nil {
				return fmt.Errorf("%d pods, %d changes a second: %w", n, rate, err)
			}
			for i, c := range costs {
				fmt.Fprintf(w, "%d\t%d\t%s\t%.2f\t%.1f\t%.1f\t%.1f\t%d\t%.1f\t%.1f\t%.1f\t\n", n, rate, exitEvents[i],
					c.cpu.Seconds()*1e3/c.took.Seconds(), c.rss/(1<<20), c.anonymous/(1<<20),
					c.calls/c.took.Seconds(), c.series, c.plain/1e3, c.gzipped/1e3, c.scrape.Seconds()*1e3)
			}
		}
	}
	return w.Flush()
}
