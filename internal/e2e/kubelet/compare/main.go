// Command compare runs kubelets beside each other on a real containerd, over the same
// static pods: as released, with its own event stream, on this library, and on this library
// without events. It measures what an operator would notice, and prints a table.
//
//	go run ./examples/kubelet/build && go run ./examples/kubelet/build -stock
//	cd internal/e2e/kubelet/compare && go run .
//
// It needs Linux and root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var (
	pods      = flag.Int("pods", 20, "pods whose containers are killed, once in a round")
	rounds    = flag.Int("rounds", 3, "how often every kubelet has its turn")
	starts    = flag.Int("starts", 4, "pods that are added in a round")
	switches  = flag.Int("switches", 1, "how often the pods are handed from stock to ours to stock")
	hung      = flag.Int("hung", 1, "how often a pod hangs under every kubelet")
	wedges    = flag.Int("wedges", 1, "how often a container is wedged under every kubelet")
	wedged    = flag.Duration("wedged", 30*time.Second, "how long it is")
	undeleted = flag.Int("undeleted", 1, "how often runc hangs that is to delete dead containers, under every kubelet")
	freezes   = flag.Int("freezes", 2, "how often the runtime freezes under every kubelet")
	frozen    = flag.Duration("frozen", 20*time.Second, "how long the runtime is frozen")
	longs     = flag.Int("long-freezes", 1, "how often it is frozen until the kubelet says that it is not healthy")
	inits     = flag.Int("inits", 200, "how many pods come and go whose init container fails, under every kubelet")
	idle      = flag.Duration("idle", time.Minute, "how long CPU time is measured; 0 for not")
	idlePods  = flag.String("idle-pods", "30,100", "how many pods idle meanwhile")
	lives     = flag.Int("lives", 300, "how many pods come and go under restarts of everything, under every kubelet")
	kubelets  = flag.String("kubelets", "../../../../.cache/kubelet", "the folder of the kubelets")
	only      = flag.String("only", "", "the kubelets to measure, by their names, with semicolons between; all by default")
	enforce   = flag.Bool("enforce", false, "fail when a kubelet on the library misses what is promised")
	within    = flag.Duration("within", 2*time.Second, "what is promised for a crash beside a pod that hangs")
	samples   = flag.String("samples", "", "a file of samples to add to: the table has those of earlier runs too")
	draw      = flag.Bool("draw", false, "measure nothing; make the table and the plot of what is in -samples")
	into      = flag.String("write", "", "a document to write the table into; the journal and the plot go below it")

	requestTimeout = flag.Duration("request-timeout", 2*time.Minute, "runtime-request-timeout of the kubelets")
)

func main() { measure.Main(run) }

func run(ctx context.Context) error {
	r, err := readResults(*samples)
	if err != nil {
		return err
	}
	if !*draw {
		err := measureAll(ctx, r)
		// What was measured before an error is kept.
		if err := errors.Join(err, r.keep(*samples)); err != nil {
			return err
		}
	}
	fmt.Println(r.table() + "\n" + r.journal())
	if *into != "" {
		if err := r.write(*into); err != nil {
			return err
		}
	}
	if *enforce {
		return r.check(*within)
	}
	return nil
}

// measureAll runs all that the flags ask for.
func measureAll(ctx context.Context, r *results) (err error) {
	chosen, programs, err := choose()
	if err != nil {
		return err
	}
	versions, err := versionsOf(chosen, programs)
	if err != nil {
		return err
	}
	r.began(versions)
	// What kubelets write outside of their root is removed, if they have made it.
	defer func() { err = errors.Join(err, removeMade()) }()
	n, err := startNode(ctx, programs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	m := &measurement{node: n, results: r}
	for i := range *pods {
		m.names = append(m.names, fmt.Sprintf("pod%03d", i))
		if err := n.add(m.names[i]); err != nil {
			return err
		}
	}
	for round := range *rounds {
		all := withHintsOnly(chosen)
		for i := range all {
			// Each is the first of a round in its turn.
			v := all[(i+round)%len(all)]
			say("round %d: %s", round+1, v.name)
			if err := m.round(ctx, v); err != nil {
				return err
			}
		}
	}
	for range *switches {
		if err := m.handOver(ctx, chosen); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		what   string
		times  int
		run    func(context.Context, variant) error
		of     []variant
		faults bool
	}{
		{"a container is wedged", *wedges, m.wedge, withHintsOnly(chosen), false},
		{"runc deletes nothing", *undeleted, m.withoutDeletion, withHintsOnly(chosen), false},
		{"the runtime freezes", *freezes, m.freeze, chosen, false},
		{"the runtime freezes for long", *longs, m.freezeLong, chosen, false},
		{"a pod hangs", *hung, m.hang, chosen, true},
		{fmt.Sprintf("%d init containers fail", *inits), min(*inits, 1), m.failInits, withHintsOnly(chosen), false},
		{fmt.Sprintf("%d pods come and go", *lives), min(*lives, 1), m.lives, chosen, true},
	} {
		n.faults = s.faults
		for range s.times {
			for _, v := range s.of {
				say("%s: %s", s.what, v.name)
				if err := s.run(ctx, v); err != nil {
					return err
				}
			}
		}
	}
	n.faults = false
	if *idle > 0 {
		return m.idle(ctx, chosen)
	}
	return nil
}

// choose returns the kubelets to measure, and where they are.
func choose() ([]variant, string, error) {
	if err := testnode.NeedsRoot(); err != nil {
		return nil, "", err
	}
	chosen := slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return v.optional })
	if *only != "" {
		chosen = nil
		for name := range strings.SplitSeq(*only, ";") {
			v, err := variantOf(strings.TrimSpace(name))
			if err != nil {
				return nil, "", err
			}
			chosen = append(chosen, v)
		}
	}
	programs, err := filepath.Abs(*kubelets)
	if err != nil {
		return nil, "", err
	}
	for _, v := range chosen {
		if _, err := os.Stat(filepath.Join(programs, v.program)); err != nil {
			return nil, "", fmt.Errorf("%s is not built (go run ./examples/kubelet/build, and the same with -stock): %w",
				v.program, err)
		}
	}
	return chosen, programs, nil
}

// withHintsOnly adds the kubelet that is told of no exits, where all are measured.
func withHintsOnly(chosen []variant) []variant {
	if *only != "" {
		return chosen
	}
	return variants
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// pause waits a random time around a second, so that nothing falls into step with relists.
func pause(ctx context.Context) error {
	return measure.Wait(ctx, 500*time.Millisecond+rand.N(time.Second))
}
