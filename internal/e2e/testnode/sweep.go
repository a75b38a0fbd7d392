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

// sweepVariable, in the environment of a program that imports this package,
// makes a sweeper of it.
const sweepVariable = "PLEG_E2E_SWEEP"

// sweepTimeout bounds how long killed processes may take to go. On a busy machine the shims of
// 150 pods take more than 20 s.
const sweepTimeout = 2 * time.Minute

// A test that runs into its timeout ends without any clean-up of its own, and so
// does one that is killed. Therefore the clean-up is also held by a second
// process, the sweeper: the same program again, which waits until the first one is gone.
// It is an init so that no program can forget it.
func init() {
	dir := os.Getenv(sweepVariable)
	if dir == "" {
		return
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	// Standard input is a pipe that nobody writes to and only the first process
	// holds: it ends when that process does.
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := sweep(dir); err != nil {
		fmt.Fprintln(os.Stderr, "cleaning up after a container runtime:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// sweeper is a process that sweeps when this process ends.
type sweeper struct {
	cmd  *exec.Cmd
	hold *os.File // closing it, or dying, sets the sweeper off
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
	// Neither output of the first process is inherited: whoever reads it to its
	// end, as "go test" does, would wait for the sweeper too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the sweeper: %w", err), w.Close())
	}
	return &sweeper{cmd: cmd, hold: w}, nil
}

func (s *sweeper) close() error {
	return errors.Join(s.hold.Close(), s.cmd.Wait())
}

// sweep takes away every trace of the daemon whose folder is dir: its process, the
// processes that look after containers, containers, mounts, cgroups, sockets and files. The
// name of the folder is unique and is in the command line of each of these processes and in
// the cgroup of each container, so that nothing of anybody else's can be meant.
func sweep(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	parents := append(kubeletCgroups(dir), cgroupParent(dir))
	inOurs := func(pid int) bool {
		return slices.ContainsFunc(parents, func(parent string) bool { return inCgroup(pid, parent) })
	}
	// In this order: a daemon starts shims, or conmons, and each of these a container, which
	// it reaps as long as it lives.
	for _, owned := range []func(pid int) bool{
		func(pid int) bool { return runs(pid, dir, "containerd", "crio") },
		inOurs,
		// A runc that is stuck is a script.
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

// kubeletCgroups are the cgroups of the containers that were made without a parent, as a
// kubelet makes them that manages no cgroups. containerd has CRI's namespace and the
// container's ID, CRI-O its own name and that.
func kubeletCgroups(dir string) []string {
	var cgroups []string
	for _, t := range bundles(dir) {
		cgroups = append(cgroups, filepath.Join("/", namespace, filepath.Base(t)))
	}
	// A CRI-O that is killed forgets the container that it is making, and runc does not.
	containers, _ := filepath.Glob(filepath.Join(dir, "runroot", "overlay-containers", "*"))
	started, _ := filepath.Glob(filepath.Join(dir, "oci", "*"))
	for _, c := range append(containers, started...) {
		id := filepath.Base(c)
		cgroups = append(cgroups, "/crio/crio-"+id, "/crio/crio-conmon-"+id)
	}
	return cgroups
}

// bundles are containerd's folders of what it runs.
func bundles(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "state", "io.containerd.runtime.v2.task", namespace, "*"))
	return found
}

// shimSocket is what containerd's shims have in their bundles: the address at which they
// listen, alone or in JSON. Before 2.3 it is not below the daemon's folder.
var shimSocket = regexp.MustCompile(`unix://(/run/containerd/s/[0-9a-f]{64})`)

// removeShimSockets removes the sockets of shims that were killed.
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

// cgroupParent is the cgroup that the pods of the daemon are in.
func cgroupParent(dir string) string {
	if systemdDriver { // which takes a dash for a cgroup in another
		return "/" + strings.ReplaceAll(filepath.Base(dir), "-", "") + ".slice"
	}
	return "/" + filepath.Base(dir)
}

// cgroupOfPod is the cgroup of a pod whose parent that is.
func cgroupOfPod(parent, uid string) string {
	if slice, systemd := strings.CutSuffix(parent, ".slice"); systemd {
		return parent + slice + "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	}
	return parent + "/" + uid
}

// killAll kills the processes that are owned until there are none.
func killAll(owned func(pid int) bool) error {
	deadline := time.Now().Add(sweepTimeout)
	for {
		var left []int
		for _, pid := range processes() {
			if owned(pid) {
				left = append(left, pid)
				_ = unix.Kill(pid, unix.SIGKILL) // gone meanwhile is as good
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

// runs tells whether a process is one of the programs and has a path below dir among its
// arguments.
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

// zombie tells whether a process has ended and only waits for its parent.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := bytes.Cut(b, []byte(") "))
	return bytes.HasPrefix(state, []byte("Z"))
}

// MountPoints returns where the mounts are that a process sees: "self", or its number.
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

// UnmountBelow ends the mounts below a folder.
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

// removeCgroups removes a cgroup and those in it, of every hierarchy.
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

// removeCgroup removes a cgroup, which the kernel calls busy for a moment after
// its last process has ended.
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
