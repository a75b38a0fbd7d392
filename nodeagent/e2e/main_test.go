package nodeagent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// bin is the directory of the two programs that TestMain builds: nodeagent, and app for the pods.
var bin string

func TestMain(m *testing.M) {
	testnode.ExitWithoutRoot("nodeagent")
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

// build builds the program pkg of the module in dir.
func build(dir, target, pkg string) error {
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", target, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}
