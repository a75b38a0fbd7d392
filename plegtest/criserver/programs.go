package criserver

import (
	"context"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Program is what the containers of an image run, in goroutines of this process; see
// WithPrograms.
type Program struct {
	// Start, if it is not nil, decides whether a container can start. If it returns an error, the
	// container has exited with code 128 and reason StartError, without an event, as if its command
	// did not exist. With CRI-O it is not even created, and its ID in p is empty.
	Start func(p *Process) error
	// Main is the process of a container. It may listen on loopback, which is the address of every
	// pod. It returns the exit code; a panic is exit code 2.
	//
	// ctx ends when the container is killed; Main must return soon after that, because Stop of the
	// server waits for it. p.Terminate is closed when the container is asked to stop, as by
	// SIGTERM. If Main does not return then, the container is killed at the end of the grace
	// period.
	Main func(ctx context.Context, p *Process) (exitCode int)
	// Exec is a command that ExecSync runs in a running container. ctx ends with the
	// call, its timeout or the container. If Exec is nil, every command fails to start.
	Exec func(ctx context.Context, p *Process) (exitCode int)
}

// Process is one run of a program.
type Process struct {
	// ContainerID, ContainerName and Image are the container's.
	ContainerID, ContainerName, Image string
	// PodUID, PodNamespace and PodName are its pod's.
	PodUID                types.UID
	PodNamespace, PodName string
	// Attempt is the container's restart count.
	Attempt uint32
	// Args are the container's command and arguments; for Exec, the command.
	Args []string
	// Env is the container's environment.
	Env map[string]string
	// Terminate is closed when the container is asked to stop.
	Terminate <-chan struct{}
	// Stdout and Stderr are the output that ExecSync returns. Output of Main is discarded.
	Stdout, Stderr io.Writer
}

// exitPanicked is the exit code of a Go program that panicked.
const exitPanicked = 2

// WithPrograms makes the server accept changes: clients may run, stop and remove sandboxes and
// containers, and execute commands in them. The keys of programs are the existing images; ":latest"
// may be left out. Other changes are still refused. The addresses of pods are loopback, so that
// programs can be reached.
func WithPrograms(programs map[string]Program) Option {
	return func(c *config) { c.programs = programs }
}

// process is the running program of a container.
type process struct {
	Process
	program Program
	ctx     context.Context // ends when the container has exited
	exit    context.CancelFunc
	// terminate closes Process.Terminate.
	terminate func()
}

// newProcess returns a process that ends with its container's exit, in exitLocked, with the
// container's removal, or with the server's ctx.
func newProcess(ctx context.Context, program Program, p Process) *process {
	terminate := make(chan struct{})
	p.Terminate = terminate
	ctx, exit := context.WithCancel(ctx)
	return &process{Process: p, program: program, ctx: ctx, exit: exit,
		terminate: sync.OnceFunc(func() { close(terminate) })}
}

// run runs Main and returns the exit code.
func (p *process) run() (code int) {
	return guardedRun(p.ctx, p.program.Main, p.Process)
}

// guardedRun runs a function of a program, which may panic or end its goroutine.
func guardedRun(ctx context.Context, f func(context.Context, *Process) int, p Process) (code int) {
	code = exitPanicked
	defer func() { _ = recover() }()
	if p.Stdout == nil {
		p.Stdout, p.Stderr = io.Discard, io.Discard
	}
	if f == nil {
		return 0
	}
	return f(ctx, &p)
}

// runProgram runs the program of a container that has been started.
func (s *Server) runProgram(p *process) {
	s.programs.Go(func() {
		code := p.run()
		// It fails if the container was killed meanwhile.
		_ = s.ExitContainer(p.ContainerID, code, "")
	})
}

// programOf returns the program of an image.
func (c *config) programOf(image string) (Program, bool) {
	p, ok := c.programs[image]
	if !ok {
		p, ok = c.programs[image+":latest"]
	}
	return p, ok
}

// environment returns the environment of a container.
func environment(config *runtimeapi.ContainerConfig) map[string]string {
	env := make(map[string]string, len(config.GetEnvs()))
	for _, kv := range config.GetEnvs() {
		env[kv.GetKey()] = string(kv.GetValue())
	}
	return env
}
