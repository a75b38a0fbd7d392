package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// containedVariable is an environment variable. If its value is yes, TestExitsWhileTheRuntimeIsAway
// runs its generators like the agents of the DaemonSet in plegwatch/deploy/. Each generator then
// runs in a pod's cgroup and its own cgroup namespace, with one capability. Only the runtime's
// directories are mounted, read-only.
const containedVariable = "PLEG_E2E_CONTAINED"

// contained runs a generator. If containedVariable is set, the generator runs in a container.
func contained(run func() error) error {
	state, err := stateFolder()
	switch value := os.Getenv(containedVariable); {
	case err != nil:
		return err
	case value == "yes" && state != "":
		return container(state)
	case value == "inside":
		if err := enter(state); err != nil {
			return err
		}
	}
	return run()
}

// stateFolder returns the folder of the runtime's socket. It returns "" if the socket is a link,
// because the generator must not find bundles next to a link.
func stateFolder() (string, error) {
	var config watcherConfig
	if err := json.Unmarshal([]byte(os.Getenv(watcherVariable)), &config); err != nil {
		return "", err
	}
	socket := strings.TrimPrefix(config.Endpoint, "unix://")
	if _, err := os.Readlink(socket); err == nil {
		return "", nil
	}
	return filepath.Dir(socket), nil
}

// mountsFor returns the folders of a runtime that are mounted into the container. The last two
// contain the sockets of shims.
func mountsFor(state string) []string {
	return []string{state, filepath.Join(filepath.Dir(state), "s"), "/run/containerd"}
}

// container runs this program again, in namespaces and a cgroup of its own.
func container(state string) error {
	id := strings.ReplaceAll(string(testnode.NewUID()+testnode.NewUID()), "-", "")
	cgroup := filepath.Join("/sys/fs/cgroup/kubepods/burstable/pod"+string(testnode.NewUID()), id)
	err := os.MkdirAll(cgroup, 0o755)
	if err == nil {
		// 0 means the writing process, in any PID namespace.
		err = os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0o600)
	}
	for _, dir := range mountsFor(state) {
		err = errors.Join(err, os.MkdirAll(dir, 0o711))
	}
	if err != nil {
		return fmt.Errorf("preparing the container of an agent: %w", err)
	}
	cmd := osexec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), containedVariable+"=inside")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP}
	return cmd.Run()
}

// enter restricts this process to the mounts and the capability of an agent's container.
func enter(state string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	root, err := os.MkdirTemp("", "agent-")
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting a root: %w", err)
	}
	for _, dir := range mountsFor(state) {
		target := filepath.Join(root, dir)
		err = errors.Join(err, os.MkdirAll(target, 0o755),
			unix.Mount(dir, target, "", unix.MS_BIND|unix.MS_REC, ""),
			unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	proc := filepath.Join(root, "proc")
	err = errors.Join(err, os.Mkdir(proc, 0o755), unix.Mount("proc", proc, "proc", 0, ""),
		unix.Chroot(root), os.Chdir("/"))
	if err != nil {
		return fmt.Errorf("mounting what an agent has: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || string(own) != "0::/\n" {
		return fmt.Errorf("the agent is not at the root of a cgroup namespace but in %q: %w", own, err)
	}
	return boundCapabilities(unix.CAP_DAC_OVERRIDE)
}

// boundCapabilities drops all capabilities except one from the bounding set. See also
// keepCapability.
func boundCapabilities(one uintptr) error {
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if c == one {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno != 0 && errno != unix.EINVAL { // EINVAL: the kernel does not know c
			return fmt.Errorf("dropping capability %d: %w", c, errno)
		}
	}
	return nil
}
