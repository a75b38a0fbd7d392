package e2e_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// These are attributes of tests. The table of cmd/runtimes shows their values.
const (
	attrRuntime  = "runtime"
	attrLists    = "lists"
	attrStream   = "stream"
	attrRestarts = "restarts"
	attrLost     = "lost"
)

func init() { testnode.RegisterFlags() }

func TestMain(m *testing.M) {
	if os.Getenv(watcherVariable) != "" {
		if err := contained(func() error { return runWatcher(os.Stdin, os.Stdout) }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if config := os.Getenv(endsVariable); config != "" {
		fmt.Fprintln(os.Stderr, runEndsAgent(context.Background(), config))
		os.Exit(1)
	}
	testnode.ExitWithoutRoot("e2e")
	os.Exit(m.Run())
}
