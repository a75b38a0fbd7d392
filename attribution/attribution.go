// Package attribution finds the pod and the container of a process.
//
// The kernel names the container in /proc/PID/cgroup, and the cache of a generator has its pod. If
// the container is newer than the cache, one list finds it, usually in two milliseconds. Such a
// look-up also waits for the inspection of the pod, for two seconds at most. A look-up of a known
// container makes no call to the runtime.
//
// An answer is never about another process: it does not matter whether the PID is reused during the
// look-up. It is never about another container either, because the cgroup contains its full ID. If
// the runtime does not list the container, the error is ErrUnknownContainer.
//
// # Cost
//
// If many containers are unknown, the calls to the runtime stay bounded: an Attributor makes at most
// ten lists of one pod and one list of all pods per second. Look-ups of one container share a list.
// A container that a search did not find is searched for again ten seconds later. Until then the
// generator's own lists may find it. At most 10,000 such containers are remembered.
//
// In a testing/synctest bubble, a search takes up to two seconds: its list must begin after the
// look-up, and time stands still.
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
	// ErrNoProcess means that the process has ended, or that another process has its PID. With cgroup
	// v1, a process also counts as ended if only its first thread has ended.
	ErrNoProcess = errors.New("no such process")
	// ErrNoContainer means that the process is in no container of a pod. Examples are CRI-O's conmon,
	// and the first process of a container before the runtime moves it to the container's cgroup.
	ErrNoContainer = errors.New("in no container of a pod")
	// ErrOwnContainer means that the process may be in this program's own container. A program in a
	// cgroup namespace of its own does not see the ID of its container.
	ErrOwnContainer = errors.New("may be in this program's own container")
	// ErrUnknownContainer means that the cache does not have the container, and a list did not show it.
	// The list may have been that of the pod whose UID the cgroup names. It began after the look-up, or
	// less than ten seconds before. For a container that is still being created, a later look-up may succeed.
	ErrUnknownContainer = errors.New("unknown container")
	// ErrNotSearched means that the cache does not have the container, and that no list shows whether
	// the runtime has it. The error wraps the cause: too many searches are under way, the runtime has
	// not answered, or the context has ended. Look the container up again later.
	ErrNotSearched = errors.New("could not search for container")
)

// maxFile is the size limit of a file in /proc, in bytes. A cgroup file of 14 hierarchies with paths
// of 4 KiB is smaller.
const maxFile = 64 << 10

// hostNamespace is the link in /proc/PID/ns of the first cgroup namespace. Its inode is fixed.
const hostNamespace = "cgroup:[4026531835]"

// Attributor finds the pods of processes. Its methods are safe for concurrent use.
type Attributor struct {
	generator *pleg.GenericPLEG
	proc      string
	// inHost is true if this program is in the host's cgroup namespace.
	inHost bool

	mu              sync.Mutex
	searches        map[string]*search // by container ID, "" for the next full list; guarded by mu
	misses          map[string]miss    // searches that found nothing, by container ID; guarded by mu
	second          time.Time          // when the present period of one second began; guarded by mu
	podLists        int                // pod lists that began in this period; guarded by mu
	runningPodLists int                // pod lists that have not ended; guarded by mu
	fullList        time.Time          // when the newest full list began; guarded by mu
}

// New returns an Attributor that reads the cache of a generator. The generator must run, and should
// have synced. proc is the path of the host's /proc; "" selects /proc. A test can make a folder with
// the files PID/cgroup and PID/stat.
func New(generator *pleg.GenericPLEG, proc string) *Attributor {
	if proc == "" {
		proc = "/proc"
	}
	own, _ := os.Readlink(filepath.Join(proc, "self", "ns", "cgroup"))
	return &Attributor{generator: generator, proc: proc, inHost: own == hostNamespace,
		searches: make(map[string]*search), misses: make(map[string]miss)}
}

// Result is where a process runs.
type Result struct {
	// ContainerID is the ID of the container or sandbox that the cgroup names. With ErrUnknownContainer
	// and ErrNotSearched, it is the only field that is set; with other errors, no field is.
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
// The errors are those of this package and of reading /proc. A search for a container takes at most
// three seconds, and ends with ctx. If ctx ends before the search could begin, the error is
// ErrNotSearched at once.
func (a *Attributor) Process(ctx context.Context, pid int, startTime uint64) (Result, error) {
	result, err := a.process(ctx, pid, startTime)
	if err != nil {
		err = fmt.Errorf("process %d: %w", pid, err)
	}
	return result, err
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
		if started := field(stat, 22); started != startTime {
			return Result{}, fmt.Errorf("%w: a process with this PID started at %d, not at %d", ErrNoProcess, started, startTime)
		}
	}
	in, err := a.placeOf(dir)
	if err != nil {
		return Result{}, err
	}
	if pod, found := a.generator.Cache().ByContainerID(in.container); found {
		return in.result(pod), nil
	}
	for moves := 0; ; moves++ {
		pod, err := a.podOf(ctx, in)
		now, changed := a.placeOf(dir)
		switch {
		case changed != nil && !(startTime != 0 && errors.Is(changed, ErrNoProcess)):
			return Result{}, changed
		case changed == nil && now != in && moves < 3: // it has moved
		case err != nil:
			return Result{ContainerID: in.container}, err
		default:
			return in.result(pod), nil
		}
		in = now
	}
}

// placeOf returns where a process runs.
func (a *Attributor) placeOf(dir *os.Root) (place, error) {
	cgroups, err := read(dir, "cgroup")
	if err != nil {
		return place{}, err
	}
	in, err := a.parse(cgroups)
	if err == nil {
		return in, nil
	}
	// With cgroup v1, the kernel shows "/" for a process that is ending. If it is not ending now, it
	// was not ending before.
	const exiting = 0x4 // PF_EXITING in the kernel's flags
	stat, gone := read(dir, "stat")
	switch {
	case gone != nil:
		return place{}, gone
	case field(stat, 9)&exiting != 0:
		return place{}, fmt.Errorf("%w: it has ended", ErrNoProcess)
	}
	return place{}, err
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

// field returns a numeric field of a /proc/PID/stat, counted from 1; 0 if there is none. Field 2 is the name
// in parentheses, which may contain any byte.
func field(stat string, number int) (value uint64) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if i := number - 3; i < len(fields) {
		value, _ = strconv.ParseUint(fields[i], 10, 64)
	}
	return value
}

// Cgroup returns where the processes of a cgroup run. The argument is the content of a
// /proc/PID/cgroup, a line of it, or a path as this program sees it.
//
// The errors are those of this package, except ErrNoProcess. It is another error if a line is
// malformed, or if the lines name different containers. A search takes as long as in Process. With
// cgroup v1, the file of a process that is ending names no container; Process detects this.
func (a *Attributor) Cgroup(ctx context.Context, cgroup string) (Result, error) {
	in, err := a.parse(cgroup)
	if err != nil {
		return Result{}, err
	}
	pod, err := a.podOf(ctx, in)
	if err != nil {
		return Result{ContainerID: in.container}, err
	}
	return in.result(pod), nil
}

// place is a container or sandbox, and the UID of its pod, which may be empty.
type place struct {
	container string
	pod       types.UID
}

func (p place) result(pod *pleg.PodStatus) Result {
	return Result{ContainerID: p.container, Pod: pod, Container: pod.FindContainerStatusByID(p.container)}
}

// parse returns the container that the lines of a cgroup file name.
func (a *Attributor) parse(cgroups string) (in place, err error) {
	atRoot, outside := true, false
	for line := range strings.Lines(cgroups) {
		path, ok := pathOf(line)
		if !ok {
			return place{}, fmt.Errorf("%.100q is no line of a cgroup file", line)
		}
		atRoot = atRoot && path == "/"
		outside = outside || strings.HasPrefix(path+"/", "/../")
		id, ok := cri.ContainerIDFromCgroup(path)
		if !ok { // with cgroup v1, a hierarchy may have no cgroup for the container
			continue
		}
		if in.container != "" && in.container != id {
			return place{}, fmt.Errorf("the cgroups name two containers, %s and %s", in.container, id)
		}
		in.container = id
		if uid, ok := cri.PodUIDFromCgroup(path); ok {
			in.pod = uid
		}
	}
	switch {
	case cgroups == "":
		return place{}, errors.New("the cgroup file is empty")
	case in.container != "":
		in.container = strings.Clone(in.container) // it may be remembered, without the rest of the file
		return in, nil
	case !outside && !a.inHost && (atRoot || a.isAtRoot()):
		return place{}, ErrOwnContainer
	}
	return place{}, ErrNoContainer
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
