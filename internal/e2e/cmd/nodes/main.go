// Command nodes runs the tests of internal/e2e in virtual machines. The machines differ in
// the Debian kernel, the cgroup version (v2 or v1) and the architecture (amd64 or arm64). One of
// them runs systemd. The command prints a table of nodes and runtimes. It fails if a test failed
// twice, or was skipped without a known reason.
//
//	go run ./cmd/nodes [-short NODE] [-rounds N] [-long] [-together N] [-write FILE] [NODE[/RUNTIME]...]
//	go run ./cmd/nodes -draw
//
// It needs root and Debian's apt-get. CRI-O needs the folder that PLEG_CRIO names. Without KVM, the
// machines are emulated, and much slower. Then the measured times mean nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	kept "github.com/kubepleg/pleg/internal/e2e/results"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var (
	short    = flag.String("short", "", "a node to run one quick test on, in containerd 2.4, and nothing else")
	tests    = flag.String("run", ".", "the tests to run, as for go test; without spaces")
	rounds   = flag.Int("rounds", 0, "rounds of the test of exits while the runtime is away; 0: as each cell has them")
	long     = flag.Bool("long", false, "that test also with outages of 20 seconds")
	together = flag.Int("together", 2, "how many nodes run at once, each with 5 GiB of memory")
	limit    = flag.Duration("timeout", 3*time.Hour, "how long a node may take with a runtime")
	file     = flag.String("write", "", "a file of results to add to, such as docs/bench/nodes.json")
	draw     = flag.Bool("draw", false, "run nothing; write the table of docs/bench/nodes.json into docs/RUNTIMES.md")
)

func main() {
	testnode.RegisterFlags()
	measure.Main(run)
}

func run(ctx context.Context) error {
	root, err := testnode.Root(ctx)
	if err != nil {
		return err
	}
	if *draw {
		all, err := kept.Read[results](filepath.Join(root, resultsFile))
		if err != nil {
			return err
		}
		return all.draw(filepath.Join(root, document))
	}
	if err := testnode.NeedsRoot(); err != nil {
		return err
	}
	if *together < 1 {
		return fmt.Errorf("-together is %d; it must be at least 1", *together)
	}
	cells, err := choose(flag.Args())
	if *short != "" {
		*tests = "^TestContainersLiveAndDie$"
		cells, err = choose([]string{*short + "/" + testnode.DefaultRuntime})
	}
	if err != nil {
		return err
	}
	*together = min(*together, len(cells))
	all, err := kept.Read[results](*file)
	if err != nil {
		return err
	}
	programs := []string{"xz", "busybox"}
	for _, c := range cells {
		programs = append(programs, machines[c.arch].command[0])
	}
	if err := testnode.Install(ctx, programs...); err != nil {
		return err
	}
	var (
		mu     sync.Mutex // of the results
		failed []error
	)
	ran := results{}
	running, ctx := errgroup.WithContext(ctx)
	running.SetLimit(*together)
	for _, c := range cells {
		if c.runtime == "crio" && flag.Lookup("crio").Value.String() == "" {
			mu.Lock()
			ran[c.String()] = &result{LeftOut: "no folder with CRI-O's programs is named"}
			mu.Unlock()
			fmt.Fprintln(os.Stderr, "*** CRI-O IS NOT RUN: PLEG_CRIO names no folder with its programs.")
			continue
		}
		running.Go(func() error {
			fmt.Fprintf(os.Stderr, "\n=== %s\n", c)
			r, err := c.run(ctx, root)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", c, err))
			}
			ran[c.String()], all[c.String()] = r, r
			return kept.Keep(*file, all)
		})
	}
	if err := running.Wait(); err != nil {
		return err
	}
	fmt.Print("\n", ran.table(cells), "\nNot run:\n")
	for _, l := range leftOut {
		var left []string
		for _, c := range everyCell() {
			if !slices.Contains(c.runtimes, c.runtime) && reason(c.name, c.runtime, "") == l.reason {
				left = append(left, c.String())
			}
		}
		if len(left) > 0 {
			fmt.Printf("%s: %s\n", l.reason, strings.Join(left, ", "))
		}
	}
	return errors.Join(failed...)
}
