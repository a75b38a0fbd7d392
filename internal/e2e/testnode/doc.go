// Package testnode runs a real container runtime for tests and programs. It gets or builds the
// runtime that is chosen by name, and starts it with a temporary folder and a socket of its own. It
// freezes, kills and restarts the runtime, makes its runc block or fail, and makes pods in it. It
// removes every trace of the runtime, even if the process that started it dies.
//
// A Runtime describes a runtime: where its programs come from, and what tests may expect of it.
// Tests distinguish runtimes by that, not by their names.
//
// The package needs Linux, root and, the first time, the network. containerd 1.6, runc and other
// tools come from Debian, the other versions of containerd from the Go module proxy. CRI-O's
// programs are in neither; a folder that is named must have them.
package testnode

import (
	"errors"
	"fmt"
	"os"
)

// ErrNeedsRoot is the error of everything that needs root.
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

// ExitWithoutRoot ends the process if it may not run a container runtime. TestMain calls it,
// because "go test" drops the output of a passing package: a run that tested nothing must not look
// like success. Without root the run fails, unless skipVariable is set.
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
