package proctest

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Process is a running program. If the test process ends first, the kernel kills the program.
type Process struct {
	// Log contains the program's output, unless the exec.Cmd sends the output elsewhere.
	Log *Buffer

	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	err  error         // how the program ended; set before done is closed
}

// Start starts a program in its own process group.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Log: &Buffer{}, cmd: cmd, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p
}

// Pid returns the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Wait waits until the program has ended, and returns its error.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ExitCode waits until the program has ended, and returns its exit code; -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// End sends a signal to the program and waits until it has ended. If the program does not end in
// time, End kills its process group and returns an error. Killing only the program would not be
// enough: Wait blocks while a child process holds Log open.
func (p *Process) End(s syscall.Signal, within time.Duration) error {
	_ = p.cmd.Process.Signal(s) // the program may have ended already
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // the program may have ended just now
		<-p.done
		return fmt.Errorf("%s does not end with %v", p.cmd, s)
	}
}
