// Package testnode runs a real container runtime for tests and programs. It installs or builds the
// chosen runtime, and starts it with its own temporary folder and socket. It can freeze, kill and
// restart the runtime, block its runc or make it fail, and run pods on it. At the end it removes
// every trace of the runtime, even if the process that started the runtime dies.
//
// A Runtime describes a runtime: where its programs come from, and which behaviour tests may
// expect. Tests use these properties, not the names of runtimes.
//
// The package needs Linux, root and, at first, the network. containerd 1.6, runc and other tools
// come from Debian. The other versions of containerd come from the Go module proxy. CRI-O's
// programs come from a folder that -crio or PLEG_CRIO names.
package testnode

import (
	"errors"
	"fmt"
	"os"
)

// ErrNeedsRoot reports that this process is not root.
var ErrNeedsRoot = errors.New("running a container runtime needs root")

// NeedsRoot returns ErrNeedsRoot if this process is not root.
func NeedsRoot() error {
	if os.Geteuid() != 0 {
		return ErrNeedsRoot
	}
	return nil
}

// skipVariable is an environment variable. If its value is "skip", packages of tests pass without
// root.
const skipVariable = "PLEG_E2E"

// ExitWithoutRoot is for TestMain. It ends this process if the process is not root. The process
// then fails, unless the value of skipVariable is "skip". Without the failure, a run that tested
// nothing would look like success, because "go test" drops the output of a passing package.
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
