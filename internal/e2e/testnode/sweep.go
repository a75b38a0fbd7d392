package testnode

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sweepVariable is an environment variable with a daemon's folder. It turns a program that imports
// this package into a sweeper of that folder.
const sweepVariable = "PLEG_E2E_SWEEP"

// sweepTimeout limits how long killed processes may take to end. On a busy machine, the shims of
// 150 pods take more than 20 s.
const sweepTimeout = 2 * time.Minute

// If a test times out or is killed, it does not clean up. Then a second process cleans up: the
// sweeper. It runs the same program, and waits until the first process has ended. It starts in an
// init function, so that no program can forget it.
func init() {
	dir := os.Getenv(sweepVariable)
	if dir == "" {
		return
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	// Standard input is a pipe. Only the first process holds the other end of the pipe, and nobody
	// writes to the pipe. So the read returns when the first process ends.
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := sweep(dir); err != nil {
		fmt.Fprintln(os.Stderr, "cleaning up after a container runtime:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// sweeper is a process that cleans up when this process ends.
type sweeper struct {
	cmd  *exec.Cmd
	hold *os.File // the sweeper cleans up when this is closed or this process dies
}

func startSweeper(dir string) (*sweeper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("starting the sweeper: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the sweeper: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), sweepVariable+"="+dir)
	cmd.Stdin = r
	// The sweeper does not inherit the first process's outputs. If it did, a reader of these
	// outputs, such as "go test", would also wait for the sweeper.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the sweeper: %w", err), w.Close())
	}
	return &sweeper{cmd: cmd, hold: w}, nil
}

func (s *sweeper) close() error {
	return errors.Join(s.hold.Close(), s.cmd.Wait())
}

// sweep removes every trace of the daemon in the folder dir: its process, shims, conmons,
// containers, mounts, cgroups, sockets and files. The folder has a unique name. The name is in the
// command lines of these processes and in the cgroups of the containers, so sweep removes nothing
// else.
func sweep(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	parents := append(kubeletCgroups(dir), cgroupParent(dir))
	inOurs := func(pid int) bool {
		return slices.ContainsFunc(parents, func(parent string) bool { return inCgroup(pid, parent) })
	}
	// The order matters. A daemon starts shims or conmons. A shim or conmon starts a container, and
	// must live to reap it.
	for _, owned := range []func(pid int) bool{
		func(pid int) bool { return runs(pid, dir, "containerd", "crio") },
		inOurs,
		// A stuck runc is a shell script, so "sh" is in the list.
		func(pid int) bool { return runs(pid, dir, "containerd-shim-runc-v2", "conmon", "sh") },
	} {
		if err := killAll(owned); err != nil {
			return err
		}
	}
	errs := []error{removeShimSockets(dir), UnmountBelow(dir)}
	for _, parent := range parents {
		errs = append(errs, removeCgroups(parent))
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// kubeletCgroups returns the cgroups of containers without a parent cgroup. A kubelet that manages
// no cgroups makes such containers. containerd names their cgroups by its CRI namespace and the
// container's ID. CRI-O names them by its own name and the ID.
func kubeletCgroups(dir string) []string {
	var cgroups []string
	for _, t := range bundles(dir) {
		cgroups = append(cgroups, filepath.Join("/", namespace, filepath.Base(t)))
	}
	// A killed CRI-O forgets a container that it was creating, but runc still knows the container.
	containers, _ := filepath.Glob(filepath.Join(dir, "runroot", "overlay-containers", "*"))
	started, _ := filepath.Glob(filepath.Join(dir, "oci", "*"))
	for _, c := range append(containers, started...) {
		id := filepath.Base(c)
		cgroups = append(cgroups, "/crio/crio-"+id, "/crio/crio-conmon-"+id)
	}
	return cgroups
}

// bundles returns containerd's folders of running containers and sandboxes.
func bundles(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "state", "io.containerd.runtime.v2.task", namespace, "*"))
	return found
}

// shimSocket matches the address of a shim. A file in the shim's bundle contains the address, as
// plain text or within JSON. Before containerd 2.3, the socket is outside the daemon's folder.
var shimSocket = regexp.MustCompile(`unix://(/run/containerd/s/[0-9a-f]{64})`)

// removeShimSockets removes the sockets of killed shims.
func removeShimSockets(dir string) error {
	var errs []error
	for _, b := range bundles(dir) {
		for _, name := range []string{"address", "bootstrap.json"} {
			text, _ := os.ReadFile(filepath.Join(b, name))
			if found := shimSocket.FindSubmatch(text); found != nil {
				if err := os.Remove(string(found[1])); !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// cgroupParent returns the parent cgroup of the daemon's pods.
func cgroupParent(dir string) string {
	if systemdDriver { // systemd reads a dash as a nested cgroup
		return "/" + strings.ReplaceAll(filepath.Base(dir), "-", "") + ".slice"
	}
	return "/" + filepath.Base(dir)
}

// cgroupOfPod returns the cgroup of a pod below a parent, with the kubelet's names.
func cgroupOfPod(parent, uid string) string {
	if slice, systemd := strings.CutSuffix(parent, ".slice"); systemd {
		kubepods := slice + "-kubepods"
		return parent + kubepods + ".slice" + kubepods + "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	}
	return parent + "/kubepods/pod" + uid
}

// killAll kills all processes for which owned returns true, until there are none.
func killAll(owned func(pid int) bool) error {
	deadline := time.Now().Add(sweepTimeout)
	for {
		var left []int
		for _, pid := range processes() {
			if owned(pid) {
				left = append(left, pid)
				_ = unix.Kill(pid, unix.SIGKILL) // the process may have ended already
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not go away", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func processes() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// runs reports whether a process runs one of the programs and has an argument below dir.
func runs(pid int, dir string, programs ...string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(string(b), "\x00")
	return slices.Contains(programs, filepath.Base(args[0])) &&
		slices.ContainsFunc(args[1:], func(a string) bool { return strings.HasPrefix(a, dir+"/") })
}

func inCgroup(pid int, parent string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && !zombie(pid) && slices.ContainsFunc(bytes.Fields(b), func(line []byte) bool {
		return bytes.HasSuffix(line, []byte(":"+parent)) || bytes.Contains(line, []byte(":"+parent+"/"))
	})
}

// zombie reports whether a process has ended, whether or not it was reaped.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := bytes.Cut(b, []byte(") "))
	return bytes.HasPrefix(state, []byte("Z"))
}

// MountPoints returns the mounts that a process sees. The argument is a PID, or "self".
func MountPoints(pid string) ([]string, error) {
	f, err := os.Open("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("looking for mounts: %w", err)
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points, lines.Err()
}

// UnmountBelow unmounts everything below a folder.
func UnmountBelow(dir string) error {
	points, err := MountPoints("self")
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		if !strings.HasPrefix(p, dir+"/") {
			continue
		}
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmounting %s: %w", p, err)
		}
	}
	return nil
}

// removeCgroups removes a cgroup and its children, in every hierarchy.
func removeCgroups(parent string) error {
	const root = "/sys/fs/cgroup"
	v1, err := filepath.Glob(filepath.Join(root, "*", parent))
	if err != nil {
		return err
	}
	for _, top := range append(v1, filepath.Join(root, parent)) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			if err := removeCgroup(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroup removes a cgroup. It tries again while the kernel reports the cgroup as busy, which
// lasts for a moment after the end of the last process.
func removeCgroup(dir string) error {
	deadline := time.Now().Add(sweepTimeout)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
