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
	// namespace is where CRI keeps its objects in containerd.
	namespace = "k8s.io"
	// maxSocketPath is the longest path of a unix socket on Linux.
	maxSocketPath = 107
	// bootTimeout bounds a start. A start takes a second on an idle machine, and longer with many
	// pods to recover.
	bootTimeout = 2 * time.Minute
)

// Daemon is a runtime with a folder and a socket of its own. Its methods may
// be called from several goroutines.
type Daemon struct {
	runtime  Runtime
	dir      string
	programs string // the folder of the runtime's programs
	images   string // the folder of the images' archives
	sweeper  *sweeper

	mu  sync.Mutex // held while the process changes
	run *process   // nil while no process runs
}

// process is one run of the daemon.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and was reaped
}

// Start gets what is missing, starts the chosen runtime, and waits until it serves. The caller must
// Close it. If the calling process dies, everything is removed all the same.
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
	// The sockets of containerd's shims have names of 64 digits.
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

// boot is the first start. It also imports the images.
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

// Replace makes another version of the runtime start next, with the files of this one. The daemon
// must not run, and no other method may be called meanwhile.
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

// Runtime returns the runtime, with what it promises.
func (d *Daemon) Runtime() Runtime { return d.runtime }

// Dir is the daemon's folder. Its files and mounts are removed with the daemon.
func (d *Daemon) Dir() string { return d.dir }

// CgroupParent is the cgroup whose processes are killed with the daemon.
func (d *Daemon) CgroupParent() string { return cgroupParent(d.dir) }

// Socket is the path of the daemon's socket. It stays the same over restarts.
func (d *Daemon) Socket() string { return d.runtime.family.socket(d.dir) }

// ExitsDir is the folder of the daemon's exit files, for cri.WithExitsDir; empty if the daemon
// reports exits in another way.
func (d *Daemon) ExitsDir() string { return d.runtime.family.exitsDir(d.dir) }

// Endpoint is the socket as CRI clients name it.
func (d *Daemon) Endpoint() string { return "unix://" + d.Socket() }

// Freeze stops the process without ending it: connections stay open, and the daemon answers nothing.
func (d *Daemon) Freeze() error { return d.signal(unix.SIGSTOP) }

// Thaw lets a frozen process go on.
func (d *Daemon) Thaw() error { return d.signal(unix.SIGCONT) }

// Kill ends the process as a crash would, and returns when it has ended. Pods run
// on.
func (d *Daemon) Kill() error { return d.end(unix.SIGKILL) }

// Terminate ends the process as an upgrade would, and returns when it has ended.
// Pods run on.
func (d *Daemon) Terminate() error { return d.end(unix.SIGTERM) }

// Restart starts the process, if it does not run, and waits until it serves.
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

// Launch starts the process, if it does not run, and does not wait until it
// serves.
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
	cmd.Dir = d.dir // conmon leaves a file there when a container runs out of memory
	cmd.Env = append(os.Environ(), "PATH="+d.programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that an interrupt at the terminal reaches only the test, which then
	// ends the daemon in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", d.runtime.Name, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	d.run = p
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // no error: tests end the process with signals
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

// Pid returns the daemon's process.
func (d *Daemon) Pid() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run == nil {
		return 0, fmt.Errorf("%s does not run", d.runtime.Name)
	}
	return d.run.cmd.Process.Pid, nil
}

// Alive reports whether a container has a process. It does not ask the runtime, which may be frozen.
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

// Close ends the daemon and everything that it started, and removes its folder. It does not stop
// pods in order, because that could block; it removes what they are made of.
func (d *Daemon) Close() error {
	err := d.Kill()
	return errors.Join(err, sweep(d.dir), d.sweeper.close())
}
