package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/ends"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/internal/test/proctest"
)

var endsFor = flag.Duration("ends.for", time.Minute,
	"how long TestEndsOverRestarts kills agents and the runtime; -each must be longer")

// endsVariable is an environment variable. If it is set, this program is an agent that reports ends.
// Its value is an endsConfig in JSON.
const endsVariable = "PLEG_E2E_ENDS"

// endsConfig configures an agent that reports ends.
type endsConfig struct {
	Agent              int // the number of the agent
	Endpoint, ExitsDir string
	Dir                string // contains the folder of ends, and the file endsLines
}

const endsLines = "lines.jsonl"

// endsWritten is the time in which an agent certainly writes that a container exists.
const endsWritten = 3 * time.Second

// endsLine is a line in the file endsLines. Either Listed or End is set.
type endsLine struct {
	Agent int
	// Listed is a container that the agent has known for endsWritten.
	Listed string    `json:",omitempty"`
	End    *ends.End `json:",omitempty"`
}

// runEndsAgent reports ends until the process is killed.
func runEndsAgent(ctx context.Context, config string) error {
	var c endsConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(c.Dir, endsLines), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	write := func(l endsLine) error {
		l.Agent = c.Agent
		text, err := json.Marshal(l)
		if err == nil {
			_, err = file.Write(append(text, '\n'))
		}
		return err
	}
	runtime, err := cri.Dial(c.Endpoint, cri.WithExitsDir(c.ExitsDir), cri.WithLogger(logr.Discard()))
	if err != nil {
		return err
	}
	defer runtime.Close()
	generator := pleg.New(runtime, pleg.WithLogger(logr.Discard()))
	generator.Start(ctx)
	defer generator.Stop()
	go func() {
		_ = generator.Handle(ctx, pleg.Handler{OnContainerCreated: func(e *pleg.PodLifecycleEvent) {
			time.AfterFunc(endsWritten, func() { _ = write(endsLine{Listed: e.Container.ID.ID}) })
		}})
	}()
	return ends.Follow(ctx, generator, filepath.Join(c.Dir, "ends"), func(_ context.Context, e ends.End) error {
		return write(endsLine{End: &e})
	})
}

// endsTest is a node whose containers end while agents and the runtime are killed.
type endsTest struct {
	*node
	dir    string
	agents int
	pods   []*testnode.Pod
	all    []*mortal
	live   []*mortal        // those that the test has not ended
	gone   map[*mortal]bool // those that the test has removed, or has tried to remove
}

// lines returns what the agents have written.
func (e *endsTest) lines() (lines []endsLine) {
	e.t.Helper()
	text, err := os.ReadFile(filepath.Join(e.dir, endsLines))
	if err != nil && !os.IsNotExist(err) {
		e.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var l endsLine
		if !bytes.HasSuffix(line, []byte("\n")) { // it is being written
			break
		}
		e.must(json.Unmarshal(line, &l))
		lines = append(lines, l)
	}
	return lines
}

// startAgent starts an agent. The returned function kills it.
func (e *endsTest) startAgent() (kill func()) {
	e.agents++
	config, err := json.Marshal(endsConfig{Agent: e.agents, Endpoint: e.daemon.Endpoint(), ExitsDir: e.daemon.ExitsDir(),
		Dir: e.dir})
	if err != nil {
		e.t.Error(err)
	}
	cmd := osexec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), endsVariable+"="+string(config))
	agent := proctest.Start(e.t, cmd)
	return sync.OnceFunc(func() {
		if err := agent.End(syscall.SIGKILL, patience); err != nil || agent.Log.String() != "" {
			e.t.Errorf("agent: %v: %s", err, agent.Log)
		}
	})
}

// killAgents runs one agent after another until ctx ends.
func (e *endsTest) killAgents(ctx context.Context) {
	for ctx.Err() == nil {
		kill := e.startAgent()
		pause(ctx, between(100*time.Millisecond, 8*time.Second))
		kill()
		if rand.N(2) == 0 {
			pause(ctx, between(0, 4*time.Second))
		}
	}
}

// killRuntime kills and restarts the runtime until ctx ends. It returns how often.
func (e *endsTest) killRuntime(ctx context.Context) (kills int) {
	for ; ; kills++ {
		pause(ctx, between(2*time.Second, 10*time.Second))
		if ctx.Err() != nil {
			return kills
		}
		err := e.daemon.Kill()
		pause(ctx, between(0, 4*time.Second))
		if err == nil {
			err = e.daemon.Restart(e.ctx)
		}
		if err != nil {
			e.t.Error(err)
			return kills
		}
	}
}

// run runs a container. While the runtime is away, it fails.
func (e *endsTest) run(ctx context.Context) (*mortal, error) {
	m := &mortal{code: []int{0, 42, 137}[len(e.all)%3], signal: unix.SIGUSR1}
	if m.code == 137 {
		m.signal = unix.SIGKILL
	}
	var err error
	m.id, err = e.client.Run(ctx, e.pods[len(e.all)%len(e.pods)],
		testnode.Container{Name: fmt.Sprint("c", time.Now().UnixNano()), Command: testnode.ExitOnSignal(m.code)})
	if err == nil {
		m.pid, err = e.client.Pid(ctx, m.id)
	}
	return m, err
}

// work runs, ends and removes containers until ctx ends. It removes only containers that an agent
// has listed.
func (e *endsTest) work(ctx context.Context) {
	e.t.Helper()
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(e.ctx, 10*time.Second)
		if len(e.live) < 20 {
			if m, err := e.run(call); err == nil {
				e.all, e.live = append(e.all, m), append(e.live, m)
			}
		}
		if rand.N(2) == 0 && len(e.live) > 10 {
			i := rand.N(len(e.live))
			e.must(e.live[i].end())
			e.live = slices.Delete(e.live, i, i+1)
		}
		if rand.N(4) == 0 {
			listed := make(map[string]bool)
			for _, l := range e.lines() {
				listed[l.Listed] = true
			}
			for _, m := range e.all {
				if listed[m.id] && !e.gone[m] && rand.N(10) == 0 {
					e.gone[m] = true
					e.live = slices.DeleteFunc(e.live, func(other *mortal) bool { return other == m })
					_ = e.client.Remove(call, m.id) // the runtime may be away
					break
				}
			}
		}
		cancel()
		pause(ctx, between(0, 200*time.Millisecond))
	}
}

// Containers end and are removed, while agents and the runtime are killed: neither, one of them, or
// both. Each end of a container that still exists, or that an agent has listed, is reported. It is
// reported twice only if an agent was killed in the call. The code is right if the runtime has it.
func TestEndsOverRestarts(t *testing.T) {
	e := &endsTest{node: newBareNode(t), dir: t.TempDir(), gone: make(map[*mortal]bool)}
	for i := range 3 {
		e.pods = append(e.pods, e.runPod(fmt.Sprint("ends-", i)))
	}
	ctx, cancel := context.WithTimeout(e.ctx, *endsFor)
	defer cancel()
	var joined sync.WaitGroup
	kills := 0
	joined.Go(func() { e.killAgents(ctx) })
	joined.Go(func() { kills = e.killRuntime(ctx) })
	e.work(ctx)
	joined.Wait()
	for _, m := range e.live {
		e.must(m.end())
	}
	if e.daemon.Runtime().MissesExits {
		e.must(e.daemon.Kill())
		e.must(e.daemon.Restart(e.ctx))
	}
	e.must(e.client.WaitReady(e.ctx)) // the connection may still wait before it tries again
	for m := range e.gone {           // the runtime may have been away at the first attempt
		_ = e.client.Remove(e.ctx, m.id)
	}
	for _, m := range e.all {
		if !e.gone[m] {
			e.awaitExit(m.id)
		}
	}
	kill := e.startAgent()
	t.Cleanup(kill)
	reports := make(map[string][]*ends.End)
	again, inCall := 0, make(map[string]bool) // the last report of each killed agent
	var wrong []string
	e.eventually("the reports", func() string {
		clear(reports)
		clear(inCall)
		again, wrong = 0, nil
		last, agent := "", 0
		for _, l := range e.lines() {
			if l.Agent != agent {
				inCall[last], agent, last = true, l.Agent, ""
			}
			if l.End == nil {
				continue
			}
			last = l.End.ContainerID
			if reports[last] = append(reports[last], l.End); len(reports[last]) > 1 {
				again++
				if !inCall[last] {
					wrong = append(wrong, last)
				}
				inCall[last] = false
			}
		}
		for _, m := range e.all {
			if len(reports[m.id]) == 0 {
				return m.id
			}
		}
		return ""
	})
	kill()
	if len(wrong) > 0 {
		t.Errorf("reported again, although no agent was killed in the call: %v", wrong)
	}
	unknown, lost := 0, 0
	for _, m := range e.all {
		if e.gone[m] {
			if !reports[m.id][0].Known {
				unknown++
			}
			continue // it may have been removed before it ended
		}
		shown, err := e.client.ContainerStatus(e.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: m.id})
		e.must(err)
		knows := int(shown.Status.ExitCode) == m.code
		for _, end := range reports[m.id] {
			switch {
			case m.byRuntime: // the runtime has killed it, for example at its start
			case end.Known && end.ExitCode != m.code, !end.Known && knows:
				t.Errorf("%s, want %d; the runtime has %d %s", end, m.code, shown.Status.ExitCode, shown.Status.Reason)
			case !end.Known:
				lost++
			}
		}
	}
	t.Logf("%d agents, the runtime killed %d times; %d containers: %d removed, of which %d without a code, and %d others "+
		"without a code; %d reported again", e.agents, kills, len(e.all), len(e.gone), unknown, lost, again)
}
