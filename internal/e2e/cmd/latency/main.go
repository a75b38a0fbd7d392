// Command latency measures two latencies on a real runtime:
//
//   - the time from a container's death until a subscriber is sent the event of the death;
//   - how long a reader of the cache waits for a status that is observed after the call.
//
// In the same run and on the same deaths, it measures both latencies for a generator that only
// polls, without hints or demand. It also prints how soon a bare reader of the stream reads the
// runtime's event, and how long the calls that follow the event take by themselves. Every second
// death is used for these calls. On a runtime without events, both generators poll, and no stream
// is read.
//
// A third generator uses exit events on the same deaths. At the same time, one bare reader reads
// containerd's exit events, and another calls Wait of containerd's shims. A last reader waits on the
// pidfds of the processes, which show when the processes ended.
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
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

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
	withoutExits := []cri.Option{cri.WithoutExitEvents()}
	hinted, err := observe(ctx, daemon.Endpoint(), turns.pass, withoutExits)
	if err != nil {
		return err
	}
	defer hinted.close()
	polling, err := observe(ctx, daemon.Endpoint(), turns.pass, withoutExits, pleg.WithPollingOnly())
	if err != nil {
		return err
	}
	defer polling.close()
	pidfds, err := readPidfds(mortals)
	if err != nil {
		return err
	}
	defer pidfds.close()
	observers := []*observer{hinted, polling}
	exits, err := watchExits(ctx, daemon, mortals)
	if err != nil {
		return err
	}
	defer exits.close()
	for _, o := range []*observer{hinted, polling, exits.generator} {
		// Without this wait, a generator could find the death by its first inspection of the pod,
		// and not by an event.
		if err := o.pleg.WaitForSync(ctx); err != nil {
			return err
		}
	}
	var raw *stream // nil on a runtime without events
	if daemon.Runtime().Events {
		if raw, err = readStream(ctx, client, turns); err != nil {
			return err
		}
		defer raw.close()
		if err := hinted.awaitStream(ctx, eventStream); err != nil {
			return err
		}
	}

	fmt.Fprintln(os.Stderr, "deaths")
	round := 0
	for dying := range slices.Chunk(mortals, max(*atOnce, 1)) {
		between := 300 * time.Millisecond
		if raw == nil {
			between = *period // without events, the loop waits for a generator that polls
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
		// If the loop also waited for the polling generator, all deaths would come at the same
		// point of that generator's period.
		for _, m := range dying {
			if err := hinted.awaitDeath(ctx, m.id); err != nil {
				return err
			}
		}
	}
	for _, m := range mortals {
		if err := errors.Join(polling.awaitDeath(ctx, m.id), exits.generator.awaitDeath(ctx, m.id)); err != nil {
			return err
		}
	}
	// The time of a death is FinishedAt in the runtime's status. The time from FinishedAt to the
	// runtime's event is caused by the runtime. The rest is caused by the library.
	var theirs, floor, bare measure.Samples
	var first exitSamples
	ours, whole := make([]measure.Samples, len(observers)), make([]measure.Samples, len(observers))
	for _, m := range mortals {
		finished, err := hinted.finishedAt(m)
		if err != nil {
			return err
		}
		ended, err := first.add(exits, pidfds, m)
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
		first.cri = append(first.cri, event.read.Sub(ended))
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
	// A reader of the polling generator waits half a period on average. Ten such readers run at a
	// time, which saves time. Their random pauses, of up to a period, spread the reads over the
	// period.
	hintedReads, err := read(ctx, hinted, uids, 1, *period/10)
	if err != nil {
		return err
	}
	pollingReads, err := read(ctx, polling, uids, 10, *period)
	if err != nil {
		return err
	}
	r := newReport(hinted.pleg.HealthReport().Runtime)
	r.line("FinishedAt → runtime's event, the runtime's own", theirs)
	r.line("runtime's event → a bare reader of its stream", floor)
	r.line("runtime's event → bare calls: two lists, then the statuses", bare)
	const died, reads = "runtime's event → ContainerDied", "GetNewerThan(now)"
	r.pair(died, ours[0], ours[1])
	r.within(died, ours[0], 5*time.Millisecond, 25*time.Millisecond)
	r.pair("FinishedAt → ContainerDied", whole[0], whole[1])
	r.pair(reads, hintedReads, pollingReads)
	r.within(reads, hintedReads, 5*time.Millisecond, 25*time.Millisecond)
	first.report(r)
	return r.print()
}

// end ends containers by SIGKILL and SIGUSR1, in turn. The signal for the first container changes
// every two rounds. So both signals occur in the library's rounds, and in the bare path's rounds.
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

// populate starts the containers: some will die, and the others idle. It starts up to four pods at a
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

// read measures how long readers of random pods wait. It runs atOnce readers at a time. Each reader
// pauses before each read.
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
