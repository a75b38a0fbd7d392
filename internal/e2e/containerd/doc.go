// Package containerd runs a real containerd for tests and programs of this
// module: it builds it, starts it under a temporary folder of its own with a
// socket of its own, freezes, kills and restarts it, makes pods in it, and takes
// every trace of it away again, also when the process that started it dies.
//
// It needs Linux, root, and, the first time, the network: containerd comes from
// the Go module proxy, runc and a static busybox from the distribution.
package containerd

import (
	"errors"
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
