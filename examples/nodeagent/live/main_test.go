package live

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

// skipVariable, set to "skip", lets a run without root pass.
const skipVariable = "PLEG_E2E"

// bin has what TestMain builds: the agent, and the program app that pods run.
var bin string

// TestMain makes sure that a run that tested nothing does not look like one that passed.
func TestMain(m *testing.M) {
	if err := containerd.NeedsRoot(); err != nil {
		fmt.Fprintf(os.Stderr, "SKIPPED: live: %v; nothing was tested (%s=skip makes this no failure)\n", err, skipVariable)
		if os.Getenv(skipVariable) == "skip" {
			os.Exit(0)
		}
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodeagent-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		bin = dir
		err = build("..", filepath.Join(dir, "nodeagent"), ".")
	}
	if err == nil {
		err = build(".", filepath.Join(dir, "app"), "./app")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds a program in the module of a directory.
func build(dir, target, pkg string) error {
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", target, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}
