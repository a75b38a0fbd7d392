// Command compare runs kubelets beside each other on a real containerd, over the same
// static pods: as released, with its own event stream, on this library, and on this library
// without events. It measures what an operator would notice, and prints a table.
//
//	go run ./examples/kubelet/build && go run ./examples/kubelet/build -stock
//	cd examples/kubelet/compare && go run .
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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

var (
	pods     = flag.Int("pods", 12, "pods whose containers are killed, once in a round")
	rounds   = flag.Int("rounds", 3, "how often every kubelet has its turn")
	starts   = flag.Int("starts", 4, "pods that are added in a round")
	hung     = flag.Int("hung", 1, "how often a pod hangs under every kubelet")
	freezes  = flag.Int("freezes", 2, "how often the runtime freezes under every kubelet")
	frozen   = flag.Duration("frozen", 20*time.Second, "how long the runtime is frozen")
	idle     = flag.Duration("idle", time.Minute, "how long CPU time is measured; 0 for not")
	idlePods = flag.String("idle-pods", "30,100", "how many pods idle meanwhile")
	lives    = flag.Int("lives", 300, "how many pods come and go under restarts of everything, under every kubelet")
	only     = flag.String("only", "", "the kubelets to measure, by their names, with semicolons between; all by default")
	enforce  = flag.Bool("enforce", false, "fail when a kubelet on the library misses what is promised")
	into     = flag.String("write", "", "a document to write the table into, between its markers")

	requestTimeout = flag.Duration("request-timeout", 2*time.Minute, "runtime-request-timeout of the kubelets")
)

// handledWithin is the promise that enforce checks: how soon a crash is handled while
// another pod hangs.
const handledWithin = 2 * time.Second

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	chosen, programs, err := choose()
	if err != nil {
		return err
	}
	// What kubelets write outside of their root is removed, if they have made it.
	defer func() { err = errors.Join(err, removeMade()) }()
	n, err := startNode(ctx, programs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	r := newResults(chosen)
	m := &measurement{node: n, results: r}
	for i := range *pods {
		m.names = append(m.names, fmt.Sprintf("pod%03d", i))
		if err := n.add(m.names[i]); err != nil {
			return err
		}
	}
	for round := range *rounds {
		for i := range chosen {
			// Each is the first of a round in its turn.
			v := chosen[(i+round)%len(chosen)]
			say("round %d: %s", round+1, v.name)
			if err := m.round(ctx, v, round == 0 && i == 0); err != nil {
				return err
			}
		}
	}
	for range *freezes {
		for _, v := range chosen {
			say("the runtime freezes: %s", v.name)
			if err := m.freeze(ctx, v); err != nil {
				return err
			}
		}
	}
	for range *hung {
		for _, v := range chosen {
			say("a pod hangs: %s", v.name)
			if err := m.hang(ctx, v); err != nil {
				return err
			}
		}
	}
	for _, v := range chosen {
		if *lives > 0 {
			say("%d pods come and go: %s", *lives, v.name)
			if err := m.lives(ctx, v, *lives); err != nil {
				return err
			}
		}
	}
	if *idle > 0 {
		if err := m.idle(ctx, chosen); err != nil {
			return err
		}
	}
	table := r.table()
	fmt.Println(table)
	if *into != "" {
		if err := writeBetweenMarkers(*into, table); err != nil {
			return err
		}
	}
	if *enforce {
		return r.check()
	}
	return nil
}

// choose returns the kubelets to measure, and where they are.
func choose() ([]variant, string, error) {
	if err := containerd.NeedsRoot(); err != nil {
		return nil, "", err
	}
	chosen := slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return v.optional })
	if *only != "" {
		chosen = nil
		for name := range strings.SplitSeq(*only, ";") {
			i := slices.IndexFunc(variants, func(v variant) bool { return v.name == strings.TrimSpace(name) })
			if i < 0 {
				return nil, "", fmt.Errorf("there is no kubelet %q; there are %v", name, names(variants))
			}
			chosen = append(chosen, variants[i])
		}
	}
	programs, err := filepath.Abs(filepath.Join("..", "..", "..", ".cache", "kubelet"))
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

func names(list []variant) []string {
	var all []string
	for _, v := range list {
		all = append(all, v.name)
	}
	return all
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// pause waits a random time around a second, so that nothing falls into step with relists.
func pause(ctx context.Context) error { return wait(ctx, 500*time.Millisecond+rand.N(time.Second)) }

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
