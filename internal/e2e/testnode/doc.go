// Package testnode runs a real container runtime for tests and programs: it gets or builds
// the one that is chosen by name, starts it under a temporary folder of its own with a socket
// of its own, freezes, kills and restarts it, has its runc hang or fail, makes pods in it, and
// takes every trace of it away again, also when the process that started it dies.
//
// A Runtime says what is known of each: where its programs come from, and what tests may
// expect of it. Tests tell runtimes apart by that and not by their names.
//
// The package needs Linux, root, and, the first time, the network: containerd 1.6, runc, and
// what else runs beside a runtime, come from Debian, the other versions of containerd from the
// Go module proxy. CRI-O's programs are in neither; they come from a folder that is named.
package testnode

import (
	"errors"
	"fmt"
	"os"
)

// ErrNeedsRoot is the error of everything that cannot be done without root.
var ErrNeedsRoot = errors.New("running a container runtime needs root")

// NeedsRoot returns ErrNeedsRoot if this process may not run a container runtime.
func NeedsRoot() error {
	if os.Geteuid() != 0 {
		return ErrNeedsRoot
	}
	return nil
}

// skipVariable, set to "skip", lets a run without root pass.
const skipVariable = "PLEG_E2E"

// ExitWithoutRoot ends the process if it may not run a container runtime. TestMain calls it, so
// that a run that tested nothing does not look like one that passed: "go test" swallows what a
// passing package prints, so without root the run fails unless it was told to skip.
func ExitWithoutRoot(tests string) {
	err := NeedsRoot()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "SKIPPED: %s: %v; nothing was tested (%s=skip makes this no failure)\n",
		tests, err, skipVariable)
	if os.Getenv(skipVariable) == "skip" {
		os.Exit(0)
	}
	os.Exit(1)
}
