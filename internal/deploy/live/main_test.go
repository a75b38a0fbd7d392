package live

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg/internal/e2e/containerd"
)

const (
	// skipVariable, set to "skip", lets a run without root pass.
	skipVariable = "PLEG_E2E"
	// insideVariable says that this process has a mount namespace of its own.
	insideVariable = "PLEG_DEPLOY_MOUNTS"
)

// TestMain makes sure that a run that tested nothing does not look like one that passed. It
// runs the tests again in a mount namespace whose mounts are shared, as systemd makes those
// of a node: HostToContainer needs that, and the machine's own mounts stay as they are.
func TestMain(m *testing.M) {
	if err := containerd.NeedsRoot(); err != nil {
		fmt.Fprintf(os.Stderr, "SKIPPED: live: %v; nothing was tested (%s=skip makes this no failure)\n", err, skipVariable)
		if os.Getenv(skipVariable) == "skip" {
			os.Exit(0)
		}
		os.Exit(1)
	}
	var err error
	if os.Getenv(insideVariable) == "" {
		err = again()
	} else if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err == nil {
		os.Exit(m.Run())
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a mount namespace:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// again runs this program in a mount namespace of its own.
func again() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}
