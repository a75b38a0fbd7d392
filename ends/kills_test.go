package ends_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/ends"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

var kills = flag.Int("kills", 20, "how often TestKilledAgents kills an agent")

// patience is how long a test waits for a result of another process.
const patience = 2 * time.Minute

// agentVariable is an environment variable. If it is set, the test program is an agent on the CRI
// server that it names. The agent's folder is the present one.
const agentVariable = "PLEG_TEST_ENDS"

// reportsFile has the ends that agents have reported, one per line.
const reportsFile = "reports.jsonl"

// runAgent adds each end to a file, until the program is killed.
func runAgent(ctx context.Context, endpoint string) error {
	runtime, err := cri.Connect(ctx, endpoint, cri.WithLogger(logr.Discard()))
	if err != nil {
		return err
	}
	defer runtime.Close()
	generator := pleg.New(runtime, pleg.WithRelistPeriod(50*time.Millisecond), pleg.WithLogger(logr.Discard()))
	generator.Start(ctx)
	defer generator.Stop()
	file, err := os.OpenFile(reportsFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	return ends.Follow(ctx, generator, "ends", func(_ context.Context, e ends.End) error {
		line, err := json.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(file, "\n%s\n", line) // a killed agent may leave a torn line
		}
		return err
	})
}

// killed is the world of agents that are killed.
type killed struct {
	t       *testing.T
	server  *criserver.Server
	sandbox string
	dir     string
	reports map[string][]ends.End // by container
	total   int                   // of reports
	torn    int                   // of lines that cannot be read
	size    int64                 // of the part of the file that was read
	ran     []string              // the containers that exist or existed, oldest first
	exist   []string              // those of ran that exist
	// position has the indexes in ran.
	position map[string]int
	ended    map[string]bool
	removed  map[string]bool
	// Agents know the first containers in ran, up to known. It becomes reported with each report.
	known, reported int
}

func (k *killed) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// read reads the new reports, and returns the number of all. If a container is reported, an agent has
// listed all older ones, because they are in the same pod. It has written that down when the report of
// another container follows.
func (k *killed) read() int {
	k.t.Helper()
	file, err := os.Open(filepath.Join(k.dir, reportsFile))
	if os.IsNotExist(err) {
		return 0
	}
	k.must(err)
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, k.size, math.MaxInt64-k.size))
	k.must(err)
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the agent may be writing
	k.size += int64(len(text))
	for line := range bytes.Lines(text) {
		var e ends.End
		if len(line) == 1 {
			continue
		}
		if json.Unmarshal(line, &e) != nil {
			k.torn++ // by a kill; the end is missing later if it is not reported again
			continue
		}
		k.reports[e.ContainerID] = append(k.reports[e.ContainerID], e)
		k.total++
		k.known, k.reported = max(k.known, k.reported), max(k.reported, k.position[e.ContainerID])
	}
	return k.total
}

// change runs a container if there are few, ends some, and removes some that agents know, ended or not.
func (k *killed) change() {
	k.t.Helper()
	if len(k.exist) < 50 {
		id, err := k.server.RunContainer(k.sandbox, criserver.ContainerConfig{Name: "app"})
		k.must(err)
		k.position[id] = len(k.ran)
		k.ran, k.exist = append(k.ran, id), append(k.exist, id)
	}
	k.exist = slices.DeleteFunc(k.exist, func(id string) bool {
		if !k.ended[id] && rand.N(8) == 0 {
			k.ended[id] = true
			k.must(k.server.ExitContainer(id, k.code(id), "Completed"))
		}
		if k.position[id] < k.known && rand.N(8) == 0 {
			k.removed[id] = true
			k.must(k.server.RemoveContainer(id))
		}
		return k.removed[id]
	})
}

// code returns the exit code of a container.
func (*killed) code(id string) (code int) {
	for _, b := range []byte(id) {
		code += int(b)
	}
	return code % 250
}

func (k *killed) start() (kill func()) {
	k.t.Helper()
	self, err := os.Executable()
	k.must(err)
	agent := exec.Command(self)
	agent.Dir, agent.Env, agent.Stderr = k.dir, append(os.Environ(), agentVariable+"="+k.server.Endpoint()), os.Stderr
	k.must(agent.Start())
	kill = func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	}
	k.t.Cleanup(kill) // if the test ends before it kills this agent
	return kill
}

// Agents are killed at any moment, while containers start, end and are removed. The next agent can
// open the folder. Each end is reported, with the right code if it is known, and twice only by an
// agent whose predecessor was killed in the call.
func TestKilledAgents(t *testing.T) {
	server := proctest.CRIServer(t)
	k := &killed{t: t, server: server, dir: t.TempDir(), reports: map[string][]ends.End{},
		position: map[string]int{}, ended: map[string]bool{}, removed: map[string]bool{},
		sandbox: server.RunPod(criserver.PodConfig{Namespace: "shop", Name: "cart-0"})}
	for n := range *kills {
		kill, before := k.start(), k.read()
		k.change()
		if rand.N(4) > 0 {
			for begun := time.Now(); k.read() == before && time.Since(begun) < time.Second; {
				k.change()
				time.Sleep(time.Millisecond) // the agent is another process, so it has no fake clock
			}
		}
		time.Sleep(rand.N(10 * time.Millisecond))
		kill()
		k.change()
		if n%1000 == 999 {
			t.Logf("%d kills, %d containers, %d reports", n+1, len(k.ran), k.read())
		}
	}
	for _, id := range k.ran {
		if !k.ended[id] && !k.removed[id] {
			k.ended[id] = true
			k.must(server.ExitContainer(id, k.code(id), "Completed"))
		}
	}
	// An end that is younger than two seconds may be held back, and would be open when all are reported.
	time.Sleep(2 * time.Second)
	kill := k.start()
	missing := k.ran
	for deadline := time.Now().Add(patience); len(missing) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		k.read()
		missing = nil
		for _, id := range k.ran {
			if len(k.reports[id]) == 0 {
				missing = append(missing, id)
			}
		}
	}
	kill()
	if len(missing) > 0 {
		t.Errorf("%d of %d ends are not reported: %v", len(missing), len(k.ran), missing)
	}
	again, unknown := 0, 0
	for _, id := range k.ran {
		again += max(0, len(k.reports[id])-1)
		for _, e := range k.reports[id] {
			if !e.Known {
				unknown++
			}
			killed := e.ExitCode == 137 && k.removed[id] && !k.ended[id] // by its removal
			if !e.Known && !k.removed[id] || e.Known && e.ExitCode != k.code(id) && !killed {
				t.Errorf("%+v, want %d", e, k.code(id))
			}
		}
	}
	if k.torn > *kills {
		t.Errorf("%d lines are torn", k.torn)
	}
	if again > *kills {
		t.Errorf("%d ends are reported again", again)
	}
	t.Logf("%d kills; of %d containers, %d were removed, %d have no code, and %d were reported again",
		*kills, len(k.ran), len(k.removed), unknown, again)
	// An agent may be killed before it has noted what is gone.
	exist := len(server.Containers(k.sandbox))
	for deadline := time.Now().Add(patience); ; {
		n, _ := entries(t, filepath.Join(k.dir, "ends"))
		if n <= exist+1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d entries for %d containers", n, exist)
		}
		kill := k.start()
		time.Sleep(time.Second)
		kill()
	}
}
