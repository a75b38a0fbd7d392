package pleg_test

import (
	"bufio"
	"context"
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
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// TestScenarios runs the scripts in testdata, each in a bubble of its own.
// docs/SCENARIOS.md describes their language; -rewrite writes the outcomes.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			checkProse(t, path)
			synctest.Test(t, func(t *testing.T) {
				s := &scenario{t: t}
				t.Cleanup(s.end)
				datadriven.RunTest(t, path, s.directive)
			})
		})
	}
}

// checkProse holds a script to beginning with what it shows and the rule that it
// holds.
func checkProse(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var prose strings.Builder
	lines := bufio.NewScanner(file)
	for lines.Scan() && strings.HasPrefix(lines.Text(), "#") {
		prose.WriteString(lines.Text() + "\n")
	}
	rule := regexp.MustCompile(`Rules? (\d+)`).FindStringSubmatch(prose.String())
	if rule == nil {
		t.Fatalf("%s does not begin with a comment that names a rule", path)
	}
	if n, _ := strconv.Atoi(rule[1]); n < 1 || n > 19 {
		t.Errorf("%s names rule %d, which does not exist", path, n)
	}
}

// scenario is a script being run: a fake runtime, a generator, and its users. All
// of it is made at the first command, which may be "node" with options.
type scenario struct {
	t     *testing.T
	began time.Time
	clock clock.Clock
	fake  *clocktesting.FakeClock // nil unless the clock was asked to be fake
	rt    *plegtest.Runtime
	cache *pleg.PodCache
	reg   *prometheus.Registry
	g     *pleg.GenericPLEG
	watch <-chan *pleg.PodLifecycleEvent

	heals   []healing
	garbled garbled
	calls   callLog
	subs    map[string]*scenarioSub
	readers []*scenarioReader
	joined  sync.WaitGroup
}

// directive runs the command of a directive and those in the lines below it, and
// returns all that they say.
func (s *scenario) directive(t *testing.T, d *datadriven.TestData) string {
	said := s.do(command{t, d.Pos, d.Cmd, d.CmdArgs})
	for _, line := range strings.Split(d.Input, "\n") {
		name, args, err := datadriven.ParseLine(line)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		if name != "" && !strings.HasPrefix(name, "#") {
			said += s.do(command{t, d.Pos, name, args})
		}
	}
	return said
}

// do runs one command, waits until all that it set off has settled, and returns
// what it says, in whole lines.
func (s *scenario) do(c command) string {
	if s.g == nil && c.name != "node" {
		s.node(command{t: c.t, pos: c.pos})
	}
	run, ok := commands[c.name]
	if !ok {
		c.fatalf("there is no command %q", c.name)
	}
	said := run(s, c)
	synctest.Wait()
	if said != "" && !strings.HasSuffix(said, "\n") {
		said += "\n"
	}
	return said
}

var commands map[string]func(*scenario, command) string

func init() {
	commands = map[string]func(*scenario, command) string{
		"node": (*scenario).node,

		"pod": (*scenario).pod, "set": (*scenario).set, "sandbox": (*scenario).sandbox, "exit": (*scenario).exit, "remove": (*scenario).remove,
		"ips": (*scenario).ips, "garbage": (*scenario).garbage,
		"fail": (*scenario).fail, "hang": (*scenario).hang, "delay": (*scenario).delay, "heal": (*scenario).heal,
		"emit": (*scenario).emit, "stream": (*scenario).stream,

		"start": (*scenario).start, "stop": (*scenario).stop, "relist": (*scenario).relist,
		"request": (*scenario).request, "reinspect": (*scenario).reinspect,
		"advance": (*scenario).advance, "jump": (*scenario).jump,

		"events": (*scenario).events, "subscribe": (*scenario).subscribe, "unsubscribe": (*scenario).unsubscribe, "read": (*scenario).read,
		"block": (*scenario).block, "readers": (*scenario).readersNow, "cancel": (*scenario).cancel,

		"status": (*scenario).status, "health": (*scenario).health, "report": (*scenario).report, "calls": (*scenario).callsMade, "metrics": (*scenario).metrics,
	}
}

// node makes the runtime and the generator.
func (s *scenario) node(c command) string {
	if s.g != nil {
		c.fatalf("node is the first command")
	}
	s.clock, s.subs = clock.RealClock{}, make(map[string]*scenarioSub)
	if c.str("clock") == "fake" {
		s.fake = clocktesting.NewFakeClock(time.Now())
		s.clock = s.fake
	}
	s.began = s.clock.Now()
	s.rt, s.cache, s.reg = plegtest.NewRuntime(plegtest.WithClock(s.clock)), pleg.NewCache(), prometheus.NewRegistry()
	s.garbled = make(garbled)
	opts := []pleg.Option{
		pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(s.reg),
		pleg.WithRelistThreshold(c.duration("threshold")), pleg.WithInspectionTimeout(c.duration("timeout")),
		pleg.WithInspectionWorkers(c.number("workers", 0)), pleg.WithProvenRelistPeriod(c.duration("proven")),
	}
	var runtime pleg.Runtime = &recordingRuntime{s}
	if c.has("companions") {
		runtime = &recordingCompanions{recordingRuntime{s}}
		s.rt.EmitOnChange(c.str("companions") != "silent")
	}
	s.g = pleg.NewGenericPLEG(runtime, c.number("capacity", 0), c.duration("period"), s.cache, s.clock, opts...)
	s.watch = s.g.Watch()
	return ""
}

// end lets go of everything, so that nothing is left in the bubble.
func (s *scenario) end() {
	if s.g == nil {
		return
	}
	for _, h := range s.heals {
		h.heal()
	}
	for _, sub := range s.subs {
		sub.cancel()
	}
	for _, r := range s.readers {
		r.cancel()
	}
	s.g.Stop()
	s.joined.Wait()
}

// command is one command with its arguments.
type command struct {
	t    *testing.T
	pos  string
	name string
	args []datadriven.CmdArg
}

func (c command) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf(c.pos+": "+c.name+": "+format, args...)
}

func (c command) has(key string) bool {
	for _, a := range c.args {
		if a.Key == key {
			return true
		}
	}
	return false
}

// str returns the value of an argument, "" if there is none. Values in
// parentheses may have spaces.
func (c command) str(key string) string {
	for _, a := range c.args {
		if a.Key == key {
			return strings.Join(a.Vals, ", ")
		}
	}
	return ""
}

func (c command) duration(key string) time.Duration {
	if !c.has(key) {
		return 0
	}
	return c.parseDuration(c.str(key))
}

func (c command) parseDuration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		c.fatalf("%v", err)
	}
	return d
}

func (c command) number(key string, otherwise int) int {
	if !c.has(key) {
		return otherwise
	}
	n, err := strconv.Atoi(c.str(key))
	if err != nil {
		c.fatalf("%v", err)
	}
	return n
}

// first returns the first argument, which has no value.
func (c command) first() string {
	if len(c.args) == 0 {
		c.fatalf("what?")
	}
	return c.args[0].Key
}

// bubbleContext returns a context that ends with the scenario at the latest.
func (s *scenario) bubbleContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(s.t.Context())
}
