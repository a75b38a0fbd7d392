package e2e_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var restarts = flag.Int("restarts", 3, "how often TestRestarts kills the runtime and starts it again")

// recovery measures how soon a part of a generator works again after a restart of the runtime. The
// field within is the time limit.
type recovery struct {
	what    string
	within  time.Duration
	node    *node
	is      func(pleg.HealthReport) bool
	samples measure.Samples
}

// If the runtime is killed and started again, a generator soon lists again and reconnects its event
// stream. A generator that only polls soon lists again, too.
func TestRestarts(t *testing.T) {
	n := newNode(t)
	polling := n.beside(pleg.WithPollingOnly())
	pod := n.runPod("outlives")
	id := n.run(pod, testnode.Container{Name: "app", Command: testnode.Sleep()})
	n.await(id, started)
	polling.await(id, started)

	lists := func(r pleg.HealthReport) bool { return r.RelistError == "" }
	streams := func(r pleg.HealthReport) bool { return r.Stream.State == pleg.StreamConnected }
	recoveries := []*recovery{
		{what: "lists with hints", within: 2 * time.Second, node: n, is: lists},
		{what: "lists polling", within: 2 * time.Second, node: polling, is: lists},
	}
	if n.daemon.Runtime().Events {
		recoveries = append(recoveries, &recovery{what: "stream", within: 3 * time.Second, node: n, is: streams})
	}
	for range *restarts {
		n.must(n.daemon.Kill())
		for _, r := range recoveries {
			n.eventually(r.what+" ends", func() string {
				if r.is(r.node.pleg.HealthReport()) {
					return "it has not"
				}
				return ""
			})
		}
		// A longer outage is harder: the longer it lasts, the more rarely a client tries again.
		pause(n.ctx, rand.N(5*time.Second))
		n.must(n.daemon.Restart(n.ctx))
		served := time.Now()
		took := make([]time.Duration, len(recoveries))
		n.eventually("recovery", func() (missing string) {
			for i, r := range recoveries {
				report := r.node.pleg.HealthReport()
				switch {
				case took[i] != 0:
				case r.is(report):
					took[i] = time.Since(served)
				default:
					missing += fmt.Sprintf("%s: %s %+v; ", r.what, report.RelistError, report.Stream)
				}
			}
			return missing
		})
		for i, r := range recoveries {
			r.samples = append(r.samples, took[i])
			if took[i] > r.within {
				t.Errorf("%s: %v after the runtime served, want %v at most", r.what, took[i], r.within)
			}
		}
	}
	for _, r := range recoveries {
		text := fmt.Sprintf("%s %d / %d ms", r.what, r.samples.Quantile(0.5).Milliseconds(),
			r.samples.Quantile(1).Milliseconds())
		t.Log(text)
		t.Attr(attrRestarts, text)
	}
	for _, n := range []*node{n, polling} {
		n.relistTwice()
		n.await(id, started)
		n.await(pod.SandboxID, started)
	}
}
