package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	osexec "os/exec" // the package has a function exec
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
)

// watcherVariable is an environment variable. If it is set, this program runs a generator instead
// of tests. Its value is a watcherConfig in JSON.
const watcherVariable = "PLEG_E2E_WATCHER"

// watcherConfig configures a generator in a process of its own.
type watcherConfig struct {
	Endpoint, ExitsDir string
	WithoutExits       bool
	WithoutState       bool // true if the generator asks no shim
}

// line is one line of output of a watcher process: an event, a container status from the cache, or
// the end of an answer.
type line struct {
	At     time.Time
	Event  pleg.PodLifeCycleEventType
	ID     string
	Status *pleg.Status
	// Done is true for the last line of an answer. In that line, Witnesses describes the runtime.
	Done      bool
	Witnesses string
}

// runWatcher runs a generator and writes its events to out. After each line from in, the generator
// relists. If the line is a pod's UID, runWatcher also writes the pod's cached statuses. It returns
// at the end of the input.
func runWatcher(in io.Reader, out io.Writer) error {
	var config watcherConfig
	if err := json.Unmarshal([]byte(os.Getenv(watcherVariable)), &config); err != nil {
		return err
	}
	if err := keepCapability(unix.CAP_DAC_OVERRIDE); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opts := []cri.Option{cri.WithExitsDir(config.ExitsDir), cri.WithLogger(logr.Discard())}
	if config.WithoutExits {
		opts = append(opts, cri.WithoutExitEvents())
	}
	if config.WithoutState {
		opts = append(opts, cri.WithStateDir(""))
	}
	runtime, err := cri.Dial(config.Endpoint, opts...)
	if err != nil {
		return err
	}
	defer runtime.Close()
	cache := pleg.NewCache()
	generator := pleg.New(runtime, pleg.WithCache(cache), pleg.WithLogger(logr.Discard()))
	events := generator.Subscribe(ctx, pleg.WithCapacity(10000))
	var mu sync.Mutex
	encoder := json.NewEncoder(out)
	write := func(l line) {
		mu.Lock()
		defer mu.Unlock()
		_ = encoder.Encode(l) // ignored: the test that reads may have failed
	}
	go func() {
		for e := range events {
			if e.Container != nil {
				write(line{At: time.Now(), Event: e.Type, ID: e.Container.ID.ID, Status: e.Status})
			}
		}
	}()
	generator.Start(ctx)
	defer generator.Stop()
	questions := bufio.NewScanner(in)
	for questions.Scan() {
		if err := generator.Relist(ctx); err != nil {
			return err
		}
		if uid := types.UID(questions.Text()); uid != "" {
			status, err := cache.Get(uid)
			if err != nil {
				return err
			}
			for _, s := range status.ContainerStatuses {
				write(line{ID: s.ID.ID, Status: s})
			}
		}
		write(line{Done: true, Witnesses: runtime.DescribeRuntime()})
	}
	return questions.Err()
}

// keepCapability drops all capabilities of this process except one. That capability's number must
// be below 32.
func keepCapability(one int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << one, Permitted: 1 << one}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&data)), 0)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}

// awayWatcher is a generator in a process of its own.
type awayWatcher struct {
	t    *testing.T
	name string
	pid  int
	in   io.WriteCloser
	done chan string // receives the description of the runtime at the end of each answer
	stop func()      // ends the process

	mu      sync.Mutex
	events  map[string][]line       // by container; guarded by mu
	answers map[string]*pleg.Status // guarded by mu
}

// startWatcher starts a generator in a process with a PID namespace of its own.
func (n *node) startWatcher(name string, config watcherConfig) *awayWatcher {
	n.t.Helper()
	value, err := json.Marshal(config)
	n.must(err)
	cmd := osexec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), watcherVariable+"="+string(value))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWPID}
	in, err := cmd.StdinPipe()
	n.must(err)
	out, err := cmd.StdoutPipe()
	n.must(err)
	n.must(cmd.Start())
	w := &awayWatcher{t: n.t, name: name, pid: cmd.Process.Pid, in: in, done: make(chan string, 1),
		events: map[string][]line{}, answers: map[string]*pleg.Status{}}
	var joined sync.WaitGroup
	w.stop = sync.OnceFunc(func() {
		in.Close() // at the end of its input, the process ends
		joined.Wait()
		if err := cmd.Wait(); err != nil {
			n.t.Errorf("%s: %v", name, err)
		}
	})
	n.t.Cleanup(w.stop)
	joined.Go(func() {
		defer close(w.done)
		for lines := json.NewDecoder(out); ; {
			var l line
			if lines.Decode(&l) != nil {
				return
			}
			w.take(l)
		}
	})
	return w
}

func (w *awayWatcher) take(l line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case l.Done:
		w.done <- l.Witnesses
	case l.Event == "":
		w.answers[l.ID] = l.Status
	default:
		w.events[l.ID] = append(w.events[l.ID], l)
	}
}

// ask makes the watcher relist. If uid is not empty, ask also stores the cached statuses of that
// pod. It returns the watcher's description of the runtime.
func (w *awayWatcher) ask(uid types.UID) string {
	w.t.Helper()
	if _, err := fmt.Fprintln(w.in, uid); err != nil {
		w.t.Fatal(w.name, err)
	}
	select {
	case witnesses, alive := <-w.done:
		if !alive {
			w.t.Fatal(w.name, "has ended")
		}
		return witnesses
	case <-time.After(patience):
		w.t.Fatal(w.name, "does not answer")
	}
	return ""
}

// has reports whether the watcher has sent an event of this kind for a container.
func (w *awayWatcher) has(id string, kind pleg.PodLifeCycleEventType) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.events[id] {
		if l.Event == kind {
			return true
		}
	}
	return false
}

// link makes a symbolic link to the runtime's socket, and returns the link as an endpoint. The
// link's folder contains no bundles.
func (n *node) link() string {
	n.t.Helper()
	link := filepath.Join(n.t.TempDir(), "c.sock")
	n.must(os.Symlink(n.daemon.Socket(), link))
	return "unix://" + link
}
