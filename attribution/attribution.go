// Package attribution finds the pod and the container of a process.
//
// The kernel names the container in /proc/PID/cgroup, and the cache of a generator has its pod. If
// the container is newer than the cache, one list finds it, usually in two milliseconds. A look-up
// of a known container makes no call to the runtime.
//
//	generator.Start(ctx)
//	err := generator.WaitForSync(ctx)
//	…
//	attributor := attribution.New(generator, "")
//	where, err := attributor.Process(ctx, pid, 0)
//	switch {
//	case err == nil:
//		fmt.Println(where.Pod.Namespace, where.Pod.Name)
//	case errors.Is(err, attribution.ErrNoContainer):
//		// a process of the host
//	}
//
// An answer is never about another process: it does not matter whether the PID is reused during the
// look-up. It is never about another container either, because the cgroup contains its full ID. If
// the pod cannot be found, the error is ErrUnknownContainer.
//
// # Cost
//
// If many containers are unknown, the calls to the runtime stay bounded: ten lists of one pod and
// one list of all pods per second. Look-ups of one container share a list. A container that a list
// did not show is searched for again ten seconds later. Until then the generator's own lists may
// find it. At most 10,000 such containers are remembered.
//
// # Requirements
//
// The program needs the host's PIDs: hostPID, or the host's /proc. It needs no privileges. Package
// cri documents the known cgroup paths, in ContainerIDFromCgroup.
package attribution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

var (
	// ErrNoProcess means that the process does not exist any more, or that another process has its PID.
	ErrNoProcess = errors.New("no such process")
	// ErrNoContainer means that the process is in no container of a pod. CRI-O's conmon is an example.
	ErrNoContainer = errors.New("in no container of a pod")
	// ErrOwnContainer means that the process may be in this program's own container. A program in a
	// cgroup namespace of its own does not see the ID of its container.
	ErrOwnContainer = errors.New("may be in this program's own container")
	// ErrUnknownContainer means that the runtime does not list the container, or not any more. If
	// the runtime has not answered in time, or the context has ended, the error also wraps the cause.
	ErrUnknownContainer = errors.New("unknown container")
)

// maxFile is the size limit of a file in /proc, in bytes. A cgroup file of 14 hierarchies with paths of
// 4 KiB is smaller.
const maxFile = 64 << 10

// hostNamespace is the link in /proc/PID/ns of the first cgroup namespace. Its inode is fixed.
const hostNamespace = "cgroup:[4026531835]"

// Attributor finds the pods of processes. Its methods are safe for concurrent use.
type Attributor struct {
	generator *pleg.GenericPLEG
	proc      string
	// inHost is true if this program is in the host's cgroup namespace.
	inHost bool

	mu       sync.Mutex
	searches map[string]*search   // by container ID, "" for the next full list; guarded by mu
	misses   map[string]time.Time // when a search found nothing, by container ID; guarded by mu
	// podLists counts the lists of single pods since second, and fullList is when the newest full
	// list began; guarded by mu.
	podLists         int
	second, fullList time.Time
}

// New returns an Attributor that reads the cache of a generator. The generator must run, and should
// have synced. proc is the path of the host's /proc; "" selects /proc.
func New(generator *pleg.GenericPLEG, proc string) *Attributor {
	if proc == "" {
		proc = "/proc"
	}
	own, _ := os.Readlink(filepath.Join(proc, "self", "ns", "cgroup"))
	return &Attributor{generator: generator, proc: proc, inHost: own == hostNamespace,
		searches: make(map[string]*search), misses: make(map[string]time.Time)}
}

// Result is where a process runs.
type Result struct {
	// ContainerID is the ID of the container or sandbox that the cgroup names.
	ContainerID string
	// Pod is the pod of the container. If the container is gone, GoneAt is set, and Pod is the last
	// status with the container. Pod is shared and must not be modified.
	Pod *pleg.PodStatus
	// Container is the status in Pod. It is nil if the process runs in the pod's sandbox. gVisor and
	// Kata run all processes of a pod there. If the container has not been inspected yet, the status
	// contains only name, image, state and labels.
	Container *pleg.Status
}

// Process returns where a process runs. startTime is field 22 of /proc/PID/stat: when the process
// started, in clock ticks of 10 ms since boot. It is start_boottime of the kernel's task_struct
// divided by 10,000,000. Zero means that the caller does not know it.
//
// With a start time, the result is about that process, even if it ends during the call. Without a
// start time, the process must exist until the end of the call. If the process moves to another
// cgroup during the call, the result is about the newer cgroup.
//
// The errors are those of this package and of reading /proc. The call waits until ctx ends, but not
// longer than three seconds.
func (a *Attributor) Process(ctx context.Context, pid int, startTime uint64) (Result, error) {
	result, err := a.process(ctx, pid, startTime)
	if err != nil {
		return Result{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return result, nil
}

func (a *Attributor) process(ctx context.Context, pid int, startTime uint64) (Result, error) {
	// An open directory belongs to one process. After the end of the process, its files cannot be
	// read any more, even if another process has the PID.
	dir, err := os.OpenRoot(filepath.Join(a.proc, strconv.Itoa(pid)))
	if err != nil {
		return Result{}, processError(err)
	}
	defer dir.Close()
	if startTime != 0 {
		stat, err := read(dir, "stat")
		if err != nil {
			return Result{}, err
		}
		if started := startOf(stat); started != startTime {
			return Result{}, fmt.Errorf("%w: a process with this PID started at %d, not at %d", ErrNoProcess, started, startTime)
		}
	}
	cgroups, err := read(dir, "cgroup")
	if err != nil {
		return Result{}, err
	}
	for moves := 0; ; moves++ {
		result, err := a.Cgroup(ctx, cgroups)
		now, gone := read(dir, "cgroup")
		switch {
		case gone != nil && startTime == 0:
			return Result{}, gone
		case gone != nil || now == cgroups || moves == 3:
			return result, err
		}
		cgroups = now
	}
}

// processError returns ErrNoProcess, with its cause, if a file of a process that has ended could not be read.
func processError(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w: %w", ErrNoProcess, err)
	}
	return err
}

// read returns the content of a file of a process.
func read(dir *os.Root, name string) (string, error) {
	file, err := dir.Open(name)
	if err != nil {
		return "", processError(err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return "", processError(err)
	case len(content) > maxFile:
		return "", fmt.Errorf("%s is larger than %d bytes", file.Name(), maxFile)
	}
	return string(content), nil
}

// startOf returns field 22 of a /proc/PID/stat; 0 if there is none. Field 2 is the name in
// parentheses, which may contain any byte.
func startOf(stat string) (ticks uint64) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) >= 20 {
		ticks, _ = strconv.ParseUint(fields[19], 10, 64)
	}
	return ticks
}

// Cgroup returns where the processes of a cgroup run. The argument is the content of a
// /proc/PID/cgroup, a line of it, or a path as this program sees it.
//
// The errors are those of this package, except ErrNoProcess. It is another error if a line is
// malformed, or if the lines name different containers. The call waits as long as Process.
func (a *Attributor) Cgroup(ctx context.Context, cgroup string) (Result, error) {
	id, uid, err := a.containerOf(cgroup)
	if err != nil {
		return Result{}, err
	}
	pod, err := a.podOf(ctx, id, uid)
	if err != nil {
		return Result{}, err
	}
	return Result{ContainerID: id, Pod: pod, Container: pod.FindContainerStatusByID(id)}, nil
}

// containerOf returns the container that the lines of a cgroup file name, and its pod's UID, which may be empty.
func (a *Attributor) containerOf(cgroups string) (id string, uid types.UID, err error) {
	atRoot, outside := cgroups != "", false
	for line := range strings.Lines(cgroups) {
		path, ok := pathOf(line)
		if !ok {
			return "", "", fmt.Errorf("%.100q is no line of a cgroup file", line)
		}
		atRoot = atRoot && path == "/"
		outside = outside || strings.HasPrefix(path+"/", "/../")
		in, ok := cri.ContainerIDFromCgroup(path)
		if !ok { // with cgroup v1, a hierarchy may have no cgroup for the container
			continue
		}
		if id != "" && id != in {
			return "", "", fmt.Errorf("the cgroups name two containers, %s and %s", id, in)
		}
		id = in
		if in, ok := cri.PodUIDFromCgroup(path); ok {
			uid = in
		}
	}
	switch {
	case id != "":
		return strings.Clone(id), uid, nil // without the rest of the file
	case cgroups == "":
		return "", "", errors.New("the cgroup file is empty")
	case !outside && !a.inHost && (atRoot || a.isAtRoot()):
		return "", "", ErrOwnContainer
	}
	return "", "", ErrNoContainer
}

// isAtRoot reports whether this program sees its own cgroup as the root.
func (a *Attributor) isAtRoot() bool {
	own, _ := os.ReadFile(filepath.Join(a.proc, "self", "cgroup"))
	for line := range strings.Lines(string(own)) {
		if path, _ := pathOf(line); path != "/" {
			return false
		}
	}
	return len(own) > 0
}

// pathOf returns the path in a line of a cgroup file, such as 4:memory:/kubepods. The line may be a path.
func pathOf(line string) (path string, ok bool) {
	path = strings.TrimSuffix(line, "\n")
	if !strings.HasPrefix(path, "/") {
		_, path, _ = strings.Cut(path, ":")
		_, path, _ = strings.Cut(path, ":")
	}
	return path, strings.HasPrefix(path, "/")
}
