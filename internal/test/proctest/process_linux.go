package proctest

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Process is a program that runs. It ends with this process at the latest.
type Process struct {
	// Log has what the program writes, unless its command says where that goes.
	Log *Buffer

	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	err  error         // how it ended, once done is closed
}

// Start starts a program, in a process group of its own.
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

// Pid returns the number of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Wait returns how the program has ended, when it has.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ExitCode returns the exit code, when the program has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// End ends the program with a signal and returns when it has ended. Its error says that the
// program did not end in time, and was killed: with its group, because Log is read until
// nobody can write to it, and a child would hold that up.
func (p *Process) End(s syscall.Signal, within time.Duration) error {
	_ = p.cmd.Process.Signal(s) // it may have ended
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // it may have ended just now
		<-p.done
		return fmt.Errorf("%s does not end with %v", p.cmd, s)
	}
}
