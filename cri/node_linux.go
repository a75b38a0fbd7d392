package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
)

// This file watches the running containers without the runtime, which may be down: by the file
// exit.json in the bundle of a container of containerd's, and by a pidfd of its first process.
//
// exit.json: the runc shim of containerd 2.4 writes it when the process has ended, and moves it into
// place. containerd removes the bundle when it has handled the exit, so while containerd is down the
// file stays.
//
// pidfd: the runtime says which PID the first process has. The pidfd is opened first, and then the
// process must be in a cgroup with the container's ID in its name. So neither a PID that was used again
// nor the process of a virtual machine is taken for the container. From Linux 6.15 on, a pidfd has the
// exit code once the process was waited for, and says so by EPOLLHUP.

const (
	// bundlesDir is where the bundles are in the state folder of containerd, which its socket is in.
	bundlesDir = "io.containerd.runtime.v2.task/" + exitNamespace
	exitFile   = "exit.json"

	// maxExitJSONBytes is how large exit.json may be. It has some 80 bytes.
	maxExitJSONBytes = 4 << 10

	bundleEvents = unix.IN_MOVED_TO | unix.IN_ONLYDIR
)

// withoutExitJSON are the versions of containerd whose shims write no exit.json.
var withoutExitJSON = []string{"1.", "2.0.", "2.1.", "2.2.", "2.3."}

// procDir is /proc. Tests have another.
var procDir = "/proc"

// pidfdInfo is the kernel's struct pidfd_info in its first version.
type pidfdInfo struct {
	mask, cgroupID                                   uint64
	pid, tgid, ppid                                  uint32
	ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid uint32
	exitCode                                         int32
}

const (
	pidfdGetInfo  = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xFF<<8 | 11 // _IOWR(PIDFS_IOCTL_MAGIC, 11, …)
	pidfdInfoExit = 1 << 3                                                // PIDFD_INFO_EXIT
)

// nodeWatch watches running containers. Its methods may be called from several goroutines; report is
// called from any of them. A nil nodeWatch watches nothing.
type nodeWatch struct {
	runtime *Runtime
	report  func(witness, pleg.ContainerExit)
	bundles string        // the folder of the bundles; empty if there is none
	limit   int           // of pidfds
	once    sync.Once     // for begin
	begun   chan struct{} // closed when the goroutine has been started
	done    chan struct{} // closed when it has ended
	first   chan struct{} // closed when a container is watched; under mu

	mu      sync.Mutex
	closed  bool                // guarded by mu, as all below
	ending  bool                // true once close was called
	poller  *os.File            // epoll: of the pidfds and of inotify
	epoll   int                 // its descriptor
	inotify int                 // -1 if there is none
	byID    map[string]*watched // the containers
	byFD    map[int32]*watched  // those with a pidfd
	byWatch map[int32]*watched  // those whose bundle is watched
	why     [witnesses]error    // the last refusal
	pass    uint64              // the last list that was followed
}

// watched is a container that is watched, or that cannot be.
type watched struct {
	id    string
	pass  uint64         // the list that had begun last when it was first heard of
	ended bool           // its exit was reported
	fd    int32          // the pidfd; -1 if there is none
	watch int32          // the watch of the bundle; -1 if there is none
	tried [witnesses]int // the PID that was tried, or 1 if the bundle was; 0 to try again
}

func newNodeWatch(r *Runtime, report func(witness, pleg.ContainerExit)) *nodeWatch {
	n := &nodeWatch{runtime: r, report: report, inotify: -1, begun: make(chan struct{}), done: make(chan struct{}),
		first: make(chan struct{}),
		byID:  map[string]*watched{}, byFD: map[int32]*watched{}, byWatch: map[int32]*watched{}}
	if err := n.open(); err != nil {
		n.why[processes], n.why[exitJSON] = err, err
		n.closed = true
		return n
	}
	if n.bundles != "" {
		n.begin()
	}
	return n
}

// begin starts the goroutine that reports exits, once. While there is nothing to watch there is none.
func (n *nodeWatch) begin() {
	n.once.Do(func() {
		close(n.begun)
		go func() {
			defer close(n.done)
			if err := guarded(n.run); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.why[processes], n.why[exitJSON] = err, err
				n.closeLocked()
			}
		}()
	})
}

func (n *nodeWatch) open() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(epoll, true); err != nil { // so that the goroutine that polls it needs no thread
		return errors.Join(os.NewSyscallError("fcntl", err), unix.Close(epoll))
	}
	n.epoll, n.poller = epoll, os.NewFile(uintptr(epoll), "epoll") //nolint:gosec // a descriptor
	if n.why[processes] = pidfdsHaveExits(); n.why[processes] == nil {
		var files unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
		n.limit = int(min(files.Cur/2, 1<<20)) //nolint:gosec // small
	}
	n.why[exitJSON] = n.openBundles()
	return nil
}

// openBundles begins to watch bundles, if the runtime is a containerd that has them beside its socket.
func (n *nodeWatch) openBundles() error {
	switch v := n.runtime.version.Load(); {
	case v == nil: // of a runtime that is not there yet; it is asked again with the first container
		return errors.New("the runtime's version is not known yet")
	case v.name != "containerd":
		return nil
	case slices.ContainsFunc(withoutExitJSON, v.isContainerd):
		return fmt.Errorf("containerd %s writes none, 2.4 does", v.version)
	}
	dir := filepath.Join(filepath.Dir(strings.TrimPrefix(n.runtime.endpoint(), "unix://")), bundlesDir)
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	inotify, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(inotify)} //nolint:gosec // a descriptor
	if err := unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, inotify, &event); err != nil {
		return errors.Join(os.NewSyscallError("epoll_ctl", err), unix.Close(inotify))
	}
	n.inotify, n.bundles = inotify, dir
	return nil
}

// pidfdsHaveExits returns why pidfds have no exit codes; nil if they have.
func pidfdsHaveExits() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return os.NewSyscallError("uname", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if major, minor := kernelVersion(release); major < 6 || major == 6 && minor < 15 {
		return fmt.Errorf("kernel %s keeps no exit codes; Linux 6.15 does", release)
	}
	return nil
}

// kernelVersion returns the first two numbers of a release such as 6.15.0-rc1.
func kernelVersion(release string) (major, minor int) {
	first, rest, _ := strings.Cut(release, ".")
	major, _ = strconv.Atoi(first)
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		rest = rest[:end]
	}
	minor, _ = strconv.Atoi(rest)
	return major, minor
}

// watches reports whether a container is watched.
func (n *nodeWatch) watches() bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byFD)+len(n.byWatch) > 0
}

// await returns when a container has been watched, when none can be or when ctx ends. It reports whether
// one has been watched: then others can be.
func (n *nodeWatch) await(ctx context.Context) bool {
	if n == nil || n.limit == 0 && n.bundles == "" {
		return false
	}
	select {
	case <-n.first:
	case <-n.done:
	case <-ctx.Done():
	}
	select {
	case <-n.done:
		return false
	default:
	}
	select {
	case <-n.first:
		return true
	default:
		return false
	}
}

// addedLocked notes that a container is watched.
func (n *nodeWatch) addedLocked() {
	n.begin()
	select {
	case <-n.first:
	default:
		close(n.first)
	}
}

// state returns how many containers a witness watches and, if it watches none, why.
func (n *nodeWatch) state(by witness) (watched int, why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if by == processes {
		return len(n.byFD), n.why[by]
	}
	return len(n.byWatch), n.why[by]
}

// follow watches the containers that a full list shows running, and no others but those that have
// started since that list began.
func (n *nodeWatch) follow(running []runningContainer, pass uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.ending || pass < n.pass {
		return
	}
	n.pass = pass
	listed := make(map[string]bool, len(running))
	for _, c := range running {
		listed[c.id] = true
		n.watchLocked(c.id, c.pid, pass)
	}
	for id, c := range n.byID {
		if !listed[id] && c.pass < pass {
			// What it was watched for may have come just now.
			n.lookLocked(c)
			n.releaseLocked(c)
			delete(n.byID, id)
		}
	}
}

// started watches a container that has started.
func (n *nodeWatch) started(id string, pid int, pass uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed && !n.ending {
		n.watchLocked(id, pid, pass)
	}
}

func (n *nodeWatch) watchLocked(id string, pid int, pass uint64) {
	c := n.byID[id]
	if c == nil {
		c = &watched{id: id, pass: pass, fd: -1, watch: -1}
		n.byID[id] = c
	}
	if c.ended {
		return
	}
	if n.inotify < 0 {
		n.why[exitJSON] = n.openBundles() // containerd makes the folder with the first container
	}
	if n.inotify >= 0 && c.watch < 0 && c.tried[exitJSON] == 0 && filepath.IsLocal(id) && filepath.Base(id) == id {
		c.tried[exitJSON] = n.noteLocked(exitJSON, 1, n.watchBundleLocked(c))
		n.readBundleLocked(c)
	}
	if n.limit > 0 && c.fd < 0 && pid > 0 && c.tried[processes] != pid && !c.ended {
		c.tried[processes] = n.noteLocked(processes, pid, n.watchProcessLocked(c, pid))
	}
}

// noteLocked counts that a container cannot be watched. It returns what was tried, or 0 if it may work
// later.
func (n *nodeWatch) noteLocked(by witness, tried int, err error) int {
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) { // it has ended, or is elsewhere
		if err != nil && n.why[by] == nil {
			n.why[by] = err
		}
		return tried
	}
	n.why[by] = err
	n.runtime.metrics.refusals[by].Inc()
	for _, scarce := range []error{errTooMany, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC} {
		if errors.Is(err, scarce) {
			return 0
		}
	}
	return tried
}

func (n *nodeWatch) watchBundleLocked(c *watched) error {
	dir := filepath.Join(n.bundles, c.id)
	watch, err := unix.InotifyAddWatch(n.inotify, dir, bundleEvents)
	if err != nil {
		return fmt.Errorf("watching %s: %w", dir, err)
	}
	c.watch = int32(watch) //nolint:gosec // as inotify's events have it
	n.byWatch[c.watch] = c
	n.addedLocked()
	return nil
}

// errTooMany is the error of a process that is not watched because this process has few files to open.
var errTooMany = errors.New("pidfds already take half of the open files that this process may have")

func (n *nodeWatch) watchProcessLocked(c *watched, pid int) error {
	if len(n.byFD) >= n.limit {
		return errTooMany
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	if err := n.checkProcess(fd, pid, c.id); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	// EPOLLIN, which comes when the process has ended, is not waited for: there is no code then.
	event := unix.EpollEvent{Events: unix.EPOLLHUP, Fd: int32(fd)} //nolint:gosec // a descriptor
	if err := unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return errors.Join(os.NewSyscallError("epoll_ctl", err), unix.Close(fd))
	}
	c.fd = event.Fd
	n.byFD[c.fd] = c
	n.addedLocked()
	return nil
}

// checkProcess fails if the process is not of the container. The process was opened before, so that a
// PID that is used again from now on does not matter.
func (n *nodeWatch) checkProcess(fd, pid int, id string) error {
	if _, err := processInfo(fd); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	cgroups, err := os.ReadFile(filepath.Join(procDir, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return err
	}
	if !cgroupsName(string(cgroups), id) {
		return fmt.Errorf("process %d is not in the cgroup of its container %s: it belongs to a virtual machine, or"+
			" this process does not see the host's PIDs", pid, shortID(id))
	}
	return nil
}

// cgroupsName reports whether a /proc/PID/cgroup names a container: ID, cri-containerd-ID.scope, and so on.
func cgroupsName(cgroups, id string) bool {
	for element := range strings.FieldsFuncSeq(cgroups, func(r rune) bool { return r == '/' || r == '\n' }) {
		name := strings.TrimSuffix(element, ".scope")
		if prefix, is := strings.CutSuffix(name, id); is && (prefix == "" || strings.HasSuffix(prefix, "-") ||
			strings.HasSuffix(prefix, ":")) {
			return true
		}
	}
	return false
}

// processInfo asks for the exit of a process.
func processInfo(fd int) (pidfdInfo, error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	//nolint:gosec // an ioctl
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return info, os.NewSyscallError("PIDFD_GET_INFO", errno)
	}
	return info, nil
}

// lookLocked reports the exit of a container, if it can be seen.
func (n *nodeWatch) lookLocked(c *watched) {
	if c.fd >= 0 && !c.ended {
		n.readProcessLocked(c)
	}
	if c.watch >= 0 && !c.ended {
		n.readBundleLocked(c)
	}
}

// readProcessLocked reports the exit of a container, if its process has one.
func (n *nodeWatch) readProcessLocked(c *watched) {
	info, err := processInfo(int(c.fd))
	if err != nil || info.mask&pidfdInfoExit == 0 {
		return
	}
	status := syscall.WaitStatus(info.exitCode) //nolint:gosec // as wait has it
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	n.exitLocked(c, processes, code, n.runtime.opts.clock.Now())
}

// readBundleLocked reports the exit of a container, if its bundle has one.
func (n *nodeWatch) readBundleLocked(c *watched) {
	content, _, err := readSmallFile(filepath.Join(n.bundles, c.id, exitFile), maxExitJSONBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var exit struct {
		Timestamp   time.Time
		Pid, Status int
	}
	if err == nil {
		err = json.Unmarshal(content, &exit)
	}
	if err != nil || exit.Timestamp.IsZero() || exit.Pid <= 0 || exit.Status < 0 {
		var tally badTally
		tally[badExit] = 1
		n.runtime.countBad(&tally)
		return
	}
	n.exitLocked(c, exitJSON, exit.Status, exit.Timestamp)
}

func (n *nodeWatch) exitLocked(c *watched, by witness, code int, at time.Time) {
	c.ended = true
	n.report(by, pleg.ContainerExit{ContainerID: c.id, ExitCode: code, FinishedAt: at})
	n.releaseLocked(c)
}

// releaseLocked ends what a container is watched with.
func (n *nodeWatch) releaseLocked(c *watched) {
	n.releasePIDLocked(c)
	if c.watch >= 0 {
		delete(n.byWatch, c.watch)
		_, _ = unix.InotifyRmWatch(n.inotify, uint32(c.watch)) //nolint:gosec // as inotify has it
		c.watch = -1
	}
}

// releasePIDLocked ends what a process is watched with, which has no more to say.
func (n *nodeWatch) releasePIDLocked(c *watched) {
	if c.fd >= 0 {
		delete(n.byFD, c.fd)
		_ = unix.Close(int(c.fd)) // which takes it from epoll
		c.fd = -1
	}
}

// run reports exits until the watch is closed.
func (n *nodeWatch) run() error {
	n.scan()
	raw, err := n.poller.SyscallConn()
	if err != nil {
		return err
	}
	events := make([]unix.EpollEvent, 64)
	for {
		var count int
		var failure error
		if err := raw.Read(func(fd uintptr) bool {
			count, failure = unix.EpollWait(int(fd), events, 0) //nolint:gosec // a descriptor
			return count > 0 || failure != nil && !errors.Is(failure, unix.EINTR)
		}); err != nil {
			return err
		}
		if failure != nil {
			return os.NewSyscallError("epoll_wait", failure)
		}
		if err := n.handle(events[:count]); err != nil {
			return err
		}
	}
}

// scan reports the exits that bundles have already: those from while nothing was watched.
func (n *nodeWatch) scan() {
	if n.bundles == "" {
		return
	}
	entries, _ := os.ReadDir(n.bundles)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, entry := range entries {
		if c := n.byID[entry.Name()]; c == nil && !n.closed {
			c = &watched{id: entry.Name(), fd: -1, watch: -1}
			if n.readBundleLocked(c); c.ended {
				n.byID[c.id] = c
			}
		}
	}
}

func (n *nodeWatch) handle(events []unix.EpollEvent) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	for _, e := range events {
		if int(e.Fd) == n.inotify {
			if err := n.readInotifyLocked(); err != nil {
				return err
			}
		} else if c := n.byFD[e.Fd]; c != nil {
			n.readProcessLocked(c)
			n.releasePIDLocked(c)
		}
	}
	return nil
}

func (n *nodeWatch) readInotifyLocked() error {
	buffer := make([]byte, 4<<10)
	read, err := unix.Read(n.inotify, buffer)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("read", err)
	}
	return eachFileEvent(buffer[:read], func(e fileEvent) error {
		c := n.byWatch[e.watch]
		switch {
		case e.mask&unix.IN_Q_OVERFLOW != 0:
			for _, c := range n.byWatch {
				n.readBundleLocked(c)
			}
		case c == nil:
		case e.mask&unix.IN_IGNORED != 0: // the bundle is gone
			delete(n.byWatch, e.watch)
			c.watch = -1
		case e.name == exitFile:
			n.readBundleLocked(c)
		}
		return nil
	})
}

// close ends all watches, and returns when nothing is reported any more. No other call may begin
// meanwhile but follow and started, which then do nothing.
func (n *nodeWatch) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	if !n.closed {
		_ = n.poller.SetReadDeadline(time.Unix(1, 0)) // it has passed
	}
	n.ending = true
	n.mu.Unlock()
	select {
	case <-n.begun:
		<-n.done
	default:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closeLocked()
}

func (n *nodeWatch) closeLocked() {
	if n.closed {
		return
	}
	n.closed = true
	for _, c := range n.byID {
		n.releaseLocked(c)
	}
	if n.inotify >= 0 {
		_ = unix.Close(n.inotify)
	}
	_ = n.poller.Close()
}
