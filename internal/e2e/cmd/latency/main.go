// Command latency measures, on a real runtime, how long after a container's
// death its event is in a subscriber's hands, and how long a reader of the cache
// waits for a status that is newer than now; both also with hints and demand
// switched off, in the same run and on the same deaths. Beside them it prints how long
// the runtime's event takes to a bare reader of the stream, and how long the calls alone
// take that follow it. Every second death is theirs. On a runtime without events both
// generators poll, and there is no stream to read.
//
//	go run ./cmd/latency
//
// It needs root.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// The targets, for deaths and for readers.
const (
	targetP50 = 5 * time.Millisecond
	targetP99 = 25 * time.Millisecond
)

// quantiles are the columns of the table; the last one is the maximum.
var quantiles = []float64{0.5, 0.9, 0.99, 1}

var (
	deaths  = flag.Int("deaths", 200, "containers that die")
	atOnce  = flag.Int("at-once", 1, "how many of those die at the same time")
	perPod  = flag.Int("per-pod", 2, "how many of those are in one pod")
	idle    = flag.Int("idle", 50, "pods of one container that idle")
	reads   = flag.Int("reads", 200, "reads of the cache")
	period  = flag.Duration("period", time.Second, "the relist period")
	asJSON  = flag.Bool("json", false, "print the medians of the deaths alone, in JSON")
	enforce = flag.Bool("enforce", false, "end with an error when a target is missed")
)

func main() {
	testnode.RegisterFlags()
	measure.Main(run)
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
	fmt.Fprintf(os.Stderr, "starting %d containers that will die and %d that idle\n", *deaths, *idle)
	uids, mortals, err := populate(ctx, client)
	if err != nil {
		return err
	}

	turns := newTurns()
	hinted, err := observe(ctx, daemon.Endpoint(), *period, turns)
	if err != nil {
		return err
	}
	defer hinted.close()
	polling, err := observe(ctx, daemon.Endpoint(), *period, turns, pleg.WithPollingOnly())
	if err != nil {
		return err
	}
	defer polling.close()
	observers := []*observer{hinted, polling}
	var raw *stream // nil without events
	if daemon.Runtime().Events {
		if raw, err = readStream(ctx, client, turns); err != nil {
			return err
		}
		defer raw.close()
		if err := hinted.awaitStream(ctx); err != nil {
			return err
		}
	}

	fmt.Fprintln(os.Stderr, "deaths")
	round := 0
	for dying := range slices.Chunk(mortals, max(*atOnce, 1)) {
		between := 300 * time.Millisecond
		if raw == nil {
			between = *period // the one who is awaited polls
		}
		if err := measure.Wait(ctx, 50*time.Millisecond+rand.N(between)); err != nil {
			return err
		}
		if round++; round%2 == 0 && raw != nil {
			turns.give(dying)
		}
		if err := end(dying, round); err != nil {
			return err
		}
		// Not for the one who polls: deaths would fall into step with its period.
		for _, m := range dying {
			if err := hinted.awaitDeath(ctx, m.id); err != nil {
				return err
			}
		}
	}
	for _, m := range mortals {
		if err := polling.awaitDeath(ctx, m.id); err != nil {
			return err
		}
	}
	// The death itself is the runtime's FinishedAt. What passes until the runtime
	// shows it and says so is the runtime's; the rest is ours.
	var theirs, floor, bare measure.Samples
	ours, whole := make([]measure.Samples, len(observers)), make([]measure.Samples, len(observers))
	for _, m := range mortals {
		finished, err := hinted.finishedAt(m)
		if err != nil {
			return err
		}
		if raw == nil {
			for i, o := range observers {
				whole[i] = append(whole[i], o.diedAt(m).Sub(finished))
			}
			continue
		}
		event, err := raw.of(m.id)
		if err != nil {
			return err
		}
		theirs = append(theirs, event.stamped.Sub(finished))
		floor = append(floor, event.read.Sub(event.stamped))
		for i, o := range observers {
			if o == hinted && !event.walked.IsZero() {
				bare = append(bare, event.walked.Sub(event.stamped))
				continue
			}
			ours[i] = append(ours[i], o.diedAt(m).Sub(event.stamped))
			whole[i] = append(whole[i], o.diedAt(m).Sub(finished))
		}
	}

	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(measure.Latency{
			Reader: floor.Quantile(0.5), Died: ours[0].Quantile(0.5),
			Whole: whole[0].Quantile(0.5), Polling: whole[1].Quantile(0.5),
		})
	}

	fmt.Fprintln(os.Stderr, "reads")
	// Those who poll wait half a period each, so they read ten at a time. The pause
	// before a read is up to a period, so that reads do not fall into step with the
	// relists.
	hintedReads, err := read(ctx, hinted, uids, 1, *period/10)
	if err != nil {
		return err
	}
	pollingReads, err := read(ctx, polling, uids, 10, *period)
	if err != nil {
		return err
	}
	return report(hinted.pleg.HealthReport().Runtime, theirs, floor, bare, []row{
		{"runtime's event → ContainerDied", ours[0], ours[1], true},
		{"FinishedAt → ContainerDied", whole[0], whole[1], false},
		{"GetNewerThan(now)", hintedReads, pollingReads, true},
	})
}

// end ends containers, in turn by killing them and by having them exit by themselves. The
// rounds of the library and those of the bare path begin with either.
func end(dying []mortal, round int) error {
	for i, m := range dying {
		s := unix.SIGUSR1
		if (round/2+i)%2 == 0 {
			s = unix.SIGKILL
		}
		if err := unix.Kill(m.pid, s); err != nil {
			return fmt.Errorf("ending container %s: %w", m.id, err)
		}
	}
	return nil
}

// mortal is a container that will die.
type mortal struct {
	uid types.UID
	id  string
	pid int
}

// populate runs the containers that will die and those that idle, some pods at a
// time.
func populate(ctx context.Context, client *testnode.Client) (uids []types.UID, mortals []mortal, err error) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(4)
	run := func(name string, containers int, command []string, dies bool) {
		group.Go(func() error {
			pod, err := client.RunPod(ctx, "latency", name)
			if err != nil {
				return err
			}
			mu.Lock()
			uids = append(uids, pod.UID)
			mu.Unlock()
			for i := range containers {
				id, err := client.Run(ctx, pod, testnode.Container{Name: fmt.Sprintf("c%d", i), Command: command})
				if err != nil {
					return err
				}
				pid, err := client.Pid(ctx, id)
				if err != nil {
					return err
				}
				if dies {
					mu.Lock()
					mortals = append(mortals, mortal{uid: pod.UID, id: id, pid: pid})
					mu.Unlock()
				}
			}
			return nil
		})
	}
	for i := 0; i < *deaths; i += *perPod {
		run(fmt.Sprintf("mortal-%d", i), min(*perPod, *deaths-i), testnode.ExitOnSignal(1), true)
	}
	for i := range *idle {
		run(fmt.Sprintf("idle-%d", i), 1, testnode.Sleep(), false)
	}
	err = group.Wait()
	rand.Shuffle(len(mortals), func(i, j int) { mortals[i], mortals[j] = mortals[j], mortals[i] })
	return uids, mortals, err
}

// read measures how long readers of random pods wait, some at once, each after a
// pause of its own.
func read(
	ctx context.Context, o *observer, uids []types.UID, atOnce int, pause time.Duration,
) (measure.Samples, error) {
	var (
		mu      sync.Mutex
		samples measure.Samples
		failed  error
		readers sync.WaitGroup
	)
	for range atOnce {
		readers.Go(func() {
			for range *reads / atOnce {
				_ = measure.Wait(ctx, rand.N(pause))
				uid := uids[rand.IntN(len(uids))]
				began := time.Now()
				_, _, err := o.cache.LookupNewerThan(ctx, uid, began)
				took := time.Since(began)
				mu.Lock()
				samples = append(samples, took)
				if err != nil {
					failed = fmt.Errorf("reading pod %s: %w", uid, err)
				}
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	return samples, failed
}

// row is one kind of latency, with hints and demand and without.
type row struct {
	what            string
	hinted, polling measure.Samples
	// ours tells that nothing of it is the runtime's own time, so that the targets
	// hold for it.
	ours bool
}

func report(name string, theirs, floor, bare measure.Samples, rows []row) error {
	fmt.Printf("\n%s; relist period %v; %d deaths, %d at a time, %d pods idle; load average%s\n\n",
		name, *period, *deaths, *atOnce, *idle, loadAverage())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tn\tp50\tp90\tp99\tmax\t")
	line := func(what string, s measure.Samples) {
		if len(s) == 0 {
			return
		}
		fmt.Fprintf(w, "%s\t%d", what, len(s))
		for _, q := range quantiles {
			fmt.Fprintf(w, "\t%s", measure.Milliseconds(s.Quantile(q)))
		}
		fmt.Fprintln(w, "\t")
	}
	line("FinishedAt → runtime's event, the runtime's own", theirs)
	line("runtime's event → a bare reader of its stream", floor)
	line("runtime's event → bare calls: two lists, then the statuses", bare)
	var missed []error
	for _, r := range rows {
		if len(r.hinted) == 0 {
			continue
		}
		line(r.what+", hints and demand", r.hinted)
		line(r.what+", polling only", r.polling)
		fmt.Fprint(w, "ratio\t")
		for _, q := range quantiles {
			fmt.Fprintf(w, "\t%.0f ×", float64(r.polling.Quantile(q))/float64(r.hinted.Quantile(q)))
		}
		fmt.Fprintln(w, "\t")
		if r.ours {
			missed = append(missed, r.misses(0.5, targetP50), r.misses(0.99, targetP99))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	err := errors.Join(missed...)
	switch {
	case err == nil:
		fmt.Printf("\ntargets met: p50 ≤ %s, p99 ≤ %s\n",
			measure.Milliseconds(targetP50), measure.Milliseconds(targetP99))
		return nil
	case *enforce:
		return err
	default:
		fmt.Printf("\ntargets missed:\n%v\n", err)
		return nil
	}
}

// loadAverage says how busy the machine is besides: on a busy one the figures are
// the machine's.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return " unknown"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return fmt.Sprintf(" %s on %d cores", one, runtime.NumCPU())
}

// misses says by how much a target is missed; nil if it is met.
func (r row) misses(q float64, target time.Duration) error {
	got := r.hinted.Quantile(q)
	if got <= target {
		return nil
	}
	return fmt.Errorf("%s: p%.0f is %s, the target is %s", r.what, q*100, measure.Milliseconds(got),
		measure.Milliseconds(target))
}
