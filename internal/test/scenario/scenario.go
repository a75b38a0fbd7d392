// Package scenario runs the scripts in testdata. A script drives a fake runtime, a generator and
// its users, and prints what the users observe. docs/INTERNALS.md describes the language of the
// scripts.
package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// rules is the number of rules in docs/CONTRACT.md.
const rules = 37

// Run runs the script at path in its own synctest bubble, as a subtest with the name of the file.
// With the flag -rewrite of datadriven, it writes the output into the script instead of comparing
// it.
func Run(t *testing.T, path string) {
	t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
		script, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkComment(string(script)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		synctest.Test(t, func(t *testing.T) {
			s := &scenario{t: t}
			t.Cleanup(s.end)
			datadriven.RunTest(t, path, s.directive)
		})
	})
}

var ruleInComment = regexp.MustCompile(`Rules? (\d+)`)

// checkComment returns an error unless the script begins with a comment that names a rule of the
// contract.
func checkComment(script string) error {
	var comment strings.Builder
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		comment.WriteString(line)
	}
	found := ruleInComment.FindStringSubmatch(comment.String())
	if found == nil {
		return fmt.Errorf("the script does not begin with a comment that names a rule")
	}
	if n, err := strconv.Atoi(found[1]); err != nil || n < 1 || n > rules {
		return fmt.Errorf("there is no rule %s", found[1])
	}
	return nil
}

// scenario is a running script: a fake runtime, a generator, and the users of the generator. The
// script's first command creates the runtime and the generator. Options for them are in a first
// command "node".
type scenario struct {
	t *testing.T

	// The first command sets the fields below. They do not change afterwards.

	began   time.Time
	clock   clock.Clock
	fake    *clocktesting.FakeClock // nil unless clock is a fake clock
	runtime *plegtest.Runtime
	cache   *pleg.PodCache
	metrics *prometheus.Registry
	g       *pleg.GenericPLEG
	watch   <-chan *pleg.PodLifecycleEvent

	// Only commands write the fields below. Calls to the runtime read the field garbage, but never
	// while a command writes it.

	faults        []fault
	garbage       garbage
	subscriptions map[string]*subscription
	readers       []*reader

	calls  callLog
	joined sync.WaitGroup // the goroutines of the readers
}

// directive runs the commands of a datadriven directive: its first line, and the lines below. It
// returns their output.
func (s *scenario) directive(t *testing.T, d *datadriven.TestData) string {
	out := s.do(command{t, d.Pos, d.Cmd, d.CmdArgs})
	for line := range strings.Lines(d.Input) {
		name, args, err := datadriven.ParseLine(strings.TrimSuffix(line, "\n"))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		if name != "" && !strings.HasPrefix(name, "#") {
			out += s.do(command{t, d.Pos, name, args})
		}
	}
	return out
}

// do runs one command, waits until every goroutine in the bubble is blocked, and
// returns the output in whole lines.
func (s *scenario) do(c command) string {
	if s.g == nil && c.name != "node" {
		node(s, command{t: c.t, pos: c.pos, name: "node"})
	}
	run, ok := commands[c.name]
	if !ok {
		c.fatalf("there is no such command")
	}
	out := run(s, c)
	synctest.Wait()
	if out != "" && !strings.HasSuffix(out, "\n") {
		out += "\n"
	}
	return out
}

// end ends everything that the script has left running, so that the bubble can end.
func (s *scenario) end() {
	if s.g == nil {
		return
	}
	for _, f := range s.faults {
		f.heal()
	}
	for _, sub := range s.subscriptions {
		sub.cancel()
	}
	for _, r := range s.readers {
		r.cancel()
	}
	s.g.Stop()
	s.joined.Wait()
}

// context returns a context that ends when the test ends, or earlier if it is cancelled.
func (s *scenario) context() (context.Context, context.CancelFunc) {
	return context.WithCancel(s.t.Context())
}

// since returns a time relative to the beginning, rounded to the millisecond.
func (s *scenario) since(at time.Time) string {
	d := at.Sub(s.began).Round(time.Millisecond)
	if d < 0 {
		return d.String()
	}
	return "+" + d.String()
}
