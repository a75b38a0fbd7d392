package testnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// namespace is the namespace that containerd's CRI plugin uses.
	namespace = "k8s.io"
	// maxSocketPath is the length of the longest path of a unix socket on Linux.
	maxSocketPath = 107
	// bootTimeout limits the time of a start. A start takes a second on an idle machine. It takes
	// longer if the runtime has to recover many pods.
	bootTimeout = 2 * time.Minute
)

// Daemon is a runtime with its own folder and socket. Its methods are safe for concurrent use.
type Daemon struct {
	runtime  Runtime
	dir      string
	programs string // the folder of the runtime's programs
	images   string // the folder of the image archives
	sweeper  *sweeper

	mu  sync.Mutex // held while the process is started or ended
	run *process   // nil while no process runs
}

// process is one run of the daemon.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and was reaped
}

// Start installs and builds what is missing, starts the chosen runtime, and waits until it serves.
// The caller must call Close. If the calling process dies, everything is still removed.
func Start(ctx context.Context) (*Daemon, error) {
	if err := NeedsRoot(); err != nil {
		return nil, err
	}
	r, err := Chosen()
	if err != nil {
		return nil, err
	}
	programs, images, err := r.prepare(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pleg-e2e-")
	if err != nil {
		return nil, fmt.Errorf("making the folder of %s: %w", r.Name, err)
	}
	d := &Daemon{runtime: r, dir: dir, programs: programs, images: images}
	// The names of containerd's shim sockets have 64 digits.
	if len(dir)+len("/s/")+64 > maxSocketPath {
		return nil, errors.Join(fmt.Errorf("the temporary folder %s is too long for unix sockets: set TMPDIR", dir),
			os.Remove(dir))
	}
	if d.sweeper, err = startSweeper(dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	if err := d.boot(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// boot starts the daemon for the first time, and imports the images.
func (d *Daemon) boot(ctx context.Context) error {
	if err := errors.Join(linkRunc(d.dir), d.runtime.family.configure(d.dir, d.programs)); err != nil {
		return fmt.Errorf("configuring %s: %w", d.runtime.Name, err)
	}
	if err := d.Restart(ctx); err != nil {
		return err
	}
	for archive, name := range archives {
		if err := d.importImage(ctx, filepath.Join(d.images, archive), name); err != nil {
			return err
		}
	}
	return nil
}

// Replace makes the next start run another version of the runtime, with the same files. The daemon
// must not be running. No other method may be called at the same time.
func (d *Daemon) Replace(ctx context.Context, name string) error {
	other, err := named(name)
	if err != nil {
		return err
	}
	programs, _, err := other.prepare(ctx)
	if err != nil {
		return err
	}
	d.runtime, d.programs = other, programs
	return other.family.configure(d.dir, programs)
}

// Runtime describes the daemon's runtime.
func (d *Daemon) Runtime() Runtime { return d.runtime }

// Dir returns the daemon's folder. Its files and mounts are removed together with the daemon.
func (d *Daemon) Dir() string { return d.dir }

// CgroupParent returns the parent cgroup of the pods. Close kills all processes in it.
func (d *Daemon) CgroupParent() string { return cgroupParent(d.dir) }

// Socket returns the path of the daemon's socket. A restart does not change it.
func (d *Daemon) Socket() string { return d.runtime.family.socket(d.dir) }

// ExitsDir returns the folder of the daemon's exit files, for cri.WithExitsDir. It returns "" if
// the daemon reports exits in another way.
func (d *Daemon) ExitsDir() string { return d.runtime.family.exitsDir(d.dir) }

// Endpoint returns the daemon's socket in the form that CRI clients use.
func (d *Daemon) Endpoint() string { return "unix://" + d.Socket() }

// Freeze stops the process by SIGSTOP. Connections stay open, but the daemon does not answer.
func (d *Daemon) Freeze() error { return d.signal(unix.SIGSTOP) }

// Thaw lets a frozen process continue.
func (d *Daemon) Thaw() error { return d.signal(unix.SIGCONT) }

// Kill ends the process as a crash does, and waits for its end. The pods keep running.
func (d *Daemon) Kill() error { return d.end(unix.SIGKILL) }

// Terminate ends the process as an upgrade does, and waits for its end. The pods keep running.
func (d *Daemon) Terminate() error { return d.end(unix.SIGTERM) }

// Restart starts the process if it is not running, and waits until it serves.
func (d *Daemon) Restart(ctx context.Context) error {
	if err := d.Launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	client, err := d.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.WaitReady(ctx); err != nil {
		return fmt.Errorf("waiting for %s to serve: %w; its log ends:\n%s", d.runtime.Name, err, d.Log(20))
	}
	return nil
}

// Launch starts the process if it is not running. It does not wait until the process serves.
func (d *Daemon) Launch() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != nil {
		return nil
	}
	log, err := os.OpenFile(d.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", d.runtime.Name, err)
	}
	defer log.Close()
	command := d.runtime.family.command(d.dir, d.programs)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = d.dir // if a container runs out of memory, conmon writes a file there
	cmd.Env = append(os.Environ(), "PATH="+d.programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	// The process has its own process group. So an interrupt at the terminal reaches only the test,
	// which then ends the daemon.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", d.runtime.Name, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	d.run = p
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the error is ignored, because tests end the process with signals
	}()
	return nil
}

func (d *Daemon) signal(s unix.Signal) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run == nil {
		return fmt.Errorf("sending %s to %s: it does not run", unix.SignalName(s), d.runtime.Name)
	}
	if err := d.run.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("sending %s to %s: %w; its log ends:\n%s", unix.SignalName(s), d.runtime.Name, err,
			d.Log(20))
	}
	return nil
}

// Pid returns the PID of the daemon.
func (d *Daemon) Pid() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run == nil {
		return 0, fmt.Errorf("%s does not run", d.runtime.Name)
	}
	return d.run.cmd.Process.Pid, nil
}

// Alive reports whether a container has a process. It does not ask the runtime, which may be
// frozen.
func (d *Daemon) Alive(containerID string) bool {
	return slices.ContainsFunc(processes(), func(pid int) bool {
		cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		return err == nil && bytes.Contains(cgroups, []byte(containerID)) && !zombie(pid)
	})
}

func (d *Daemon) end(s unix.Signal) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run == nil {
		return nil
	}
	if err := d.run.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending %s with %s: %w", d.runtime.Name, unix.SignalName(s), err)
	}
	<-d.run.done
	d.run = nil
	return nil
}

// Log returns the last lines of the daemon's log.
func (d *Daemon) Log(lines int) string {
	b, err := os.ReadFile(d.logPath())
	if err != nil {
		return err.Error()
	}
	start := len(b)
	for n := 0; start > 0; start-- {
		if b[start-1] == '\n' {
			if n++; n > lines {
				break
			}
		}
	}
	return string(b[start:])
}

func (d *Daemon) logPath() string { return filepath.Join(d.dir, "daemon.log") }

// Close ends the daemon and everything that it started, and removes its folder. It kills the pods'
// processes, because a normal stop of the pods could block.
func (d *Daemon) Close() error {
	err := d.Kill()
	return errors.Join(err, sweep(d.dir), d.sweeper.close())
}
