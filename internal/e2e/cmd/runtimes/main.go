// Command runtimes tests and measures the library on every real runtime, or on the named ones. It
// runs the tests of internal/e2e, with a soak and many restarts, and cmd/latency. If they fail on
// one runtime, the command continues with the next runtime. At the end, it prints a table in
// Markdown.
//
//	go run ./cmd/runtimes [-results FILE] [-write FILE] [NAME...]
//
// It needs root. CRI-O needs the folder that PLEG_CRIO names. For each runtime, the output of the
// tests is written to a file below .cache.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	kept "github.com/kubepleg/pleg/internal/e2e/results"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var (
	lives    = flag.Int("lives", 240, "container lives of the soak")
	restarts = flag.Int("restarts", 20, "how often the runtime is killed and started again")
	deaths   = flag.Int("deaths", 100, "containers whose death is measured")
	file     = flag.String("results", "", "a file of results to add to: the table has those of earlier runs too")
	into     = flag.String("write", "", "a document to write the table into, between its markers")
	draw     = flag.Bool("draw", false, "run nothing; make the table of what is in -results")
)

func main() { measure.Main(run) }

func run(ctx context.Context) error {
	all, err := kept.Read[results](*file)
	if err != nil {
		return err
	}
	names := flag.Args()
	if len(names) == 0 {
		names = testnode.Names()
	}
	if *draw {
		names = nil
	}
	var failed []error
	for _, name := range names {
		if !slices.Contains(testnode.Names(), name) {
			return fmt.Errorf("there is no runtime %q; there are %v", name, testnode.Names())
		}
		r, err := try(ctx, name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
		all[name] = r
		if err := kept.Keep(*file, all); err != nil {
			return err
		}
	}
	fmt.Print(all.table())
	if *into != "" {
		failed = append(failed, all.write(*into))
	}
	return errors.Join(failed...)
}
