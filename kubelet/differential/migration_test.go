package kubelet

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubepleg/pleg/kubelet/differential/migration/after"
	"github.com/kubepleg/pleg/kubelet/differential/migration/before"
)

// rewritten maps old code to new code. A program that moves to the library changes this code, its
// imports and its constructor.
var rewritten = map[string]string{
	"status.GetRunningContainerStatuses()": "slices.DeleteFunc(slices.Clone(status.ContainerStatuses), " +
		"func(s *kubecontainer.Status) bool {\n" +
		"\t\treturn s.State != kubecontainer.ContainerStateRunning\n\t})",
	"RequestRelist(logr.Discard(), uid)": "RequestRelist(uid)",
	"pleg.PodLifecycleEventGenerator":    "*pleg.GenericPLEG",
	"kubecontainer.Cache\n":              "*kubecontainer.PodCache\n",
	"	if stopper, ok := a.generator.(interface{ Stop() }); ok {\n		defer stopper.Stop()\n	}\n": "" +
		"	defer a.generator.Stop()\n",
	"sort.Sort(kubecontainer.SortContainerStatusesByCreationTime(running))": "slices.SortFunc(running, " +
		"func(a, b *kubecontainer.Status) int { return a.CreatedAt.Compare(b.CreatedAt) })",
}

// A program that uses the kubelet's packages can move to the library if it changes its imports, its
// constructor and the lines in rewritten. Nothing else has to change.
func TestMigrationChangesLittle(t *testing.T) {
	old, moved := programWithout(t, "migration/before/agent.go"), programWithout(t, "migration/after/agent.go")
	for from, to := range rewritten {
		if !strings.Contains(old, from) {
			t.Errorf("the program has no %s", from)
		}
		old = strings.ReplaceAll(old, from, to)
	}
	if diff := cmp.Diff(strings.Split(old, "\n"), strings.Split(moved, "\n")); diff != "" {
		t.Errorf("more differs (-before +after):\n%s", diff)
	}
	if lines := strings.Count(old, "\n"); lines < 80 {
		t.Errorf("the program has %d lines besides", lines)
	}
}

// programWithout returns a program without its package clause, imports and constructor.
func programWithout(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, program, found := strings.Cut(string(text), "\n)\n")
	from, to := strings.Index(program, "// New returns"), strings.Index(program, "\n}\n")
	if !found || from < 0 || to < from {
		t.Fatalf("%s has no imports or no constructor", path)
	}
	return program[:from] + program[to:]
}

// agent is one of two programs: the first uses the kubelet's packages, the second uses the library.
type agent interface {
	Run(ctx context.Context)
	Journal() []string
}

// After the move to the library, the program writes the same entries to its journal. The order and
// the number of repetitions may differ.
func TestMigratedProgramDoesTheSame(t *testing.T) {
	journal := func(agentOf func(*node) agent) (journal []string) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode()
			n.set("a", "main", running)
			n.set("a", "side", running)
			program := agentOf(n)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); program.Run(ctx) }()
			for _, change := range []func(){
				func() {},
				func() { n.set("a", "main", exited) },
				func() { n.set("b", "other", running) },
				func() { n.set("a", "main2", running) },
				func() { n.listErr = errBroken },
				func() { n.listErr = nil; n.set("b", "other", exited) },
				func() { n.remove("a") },
			} {
				synctest.Wait()
				change()
				time.Sleep(200500 * time.Millisecond)
			}
			journal = program.Journal()
			cancel()
			<-ended
			time.Sleep(time.Minute)
		})
		slices.Sort(journal) // the two programs see pods in different orders
		return slices.Compact(journal)
	}
	was := journal(func(n *node) agent { return before.New(&kubeletRuntime{node: n}) })
	is := journal(func(n *node) agent { return after.New(&plegRuntime{node: n}) })
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("the journal differs (-before +after):\n%s", diff)
	}
	if len(was) < 10 {
		t.Errorf("the journal has only %q", was)
	}
}
