package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/test/proctest"
)

// patience is how long a test waits for an expected result before it fails.
const patience = time.Minute

// program is the path of the program, built with the Dockerfile's command.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pleg-deploy-")
	if err == nil {
		defer os.RemoveAll(dir)
		program, err = Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// startAgent starts a command that runs the program. The process ends with the test.
func startAgent(t *testing.T, name string, args ...string) *proctest.Process {
	t.Helper()
	p := proctest.Start(t, exec.Command(name, args...))
	t.Cleanup(func() {
		if err := p.End(syscall.SIGTERM, patience); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", filepath.Base(name), p.Log.Tail(4000))
		}
	})
	return p
}

// eventually calls the function missing until it returns "". After the time patience, the test
// fails with the last text that missing returned.
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	last := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = missing(); last == "" {
			return
		}
	}
	t.Fatalf("not within %v: %s", patience, last)
}
