package criserver

import (
	"context"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Program defines the behaviour of the containers of an image. Its functions run in goroutines of
// this process; see WithPrograms.
type Program struct {
	// Start decides whether a container can start; nil means that it can. If Start returns an
	// error, the container exits with code 128 and reason StartError, without an event, as if its
	// command did not exist. With CRI-O, the container is not even created, and p.ContainerID is
	// empty.
	Start func(p *Process) error
	// Main is the process of a container. It returns the exit code; a panic means exit code 2. It
	// may listen on loopback, which is the address of each pod.
	//
	// When the container is killed, ctx ends, and Main must return soon, because the server's Stop
	// waits for Main. When the container is asked to stop, as by SIGTERM, p.Terminate is closed. If
	// Main does not return within the grace period, the container is killed.
	Main func(ctx context.Context, p *Process) (exitCode int)
	// Exec runs a command of ExecSync in a running container. ctx ends when the call ends, its
	// timeout expires or the container exits. If Exec is nil, each command fails to start.
	Exec func(ctx context.Context, p *Process) (exitCode int)
}

// Process describes one run of a program.
type Process struct {
	// ContainerID, ContainerName and Image identify the container and its image.
	ContainerID, ContainerName, Image string
	// PodUID, PodNamespace and PodName identify the container's pod.
	PodUID                types.UID
	PodNamespace, PodName string
	// Attempt is the container's restart count.
	Attempt uint32
	// Args are the container's command and arguments. For Exec, they are the command of ExecSync.
	Args []string
	// Env is the container's environment.
	Env map[string]string
	// Terminate is closed when the container is asked to stop.
	Terminate <-chan struct{}
	// Stdout and Stderr receive the output of Exec, which ExecSync returns. The output of Main is
	// discarded.
	Stdout, Stderr io.Writer
}

// exitPanicked is the exit code of a Go program that panicked.
const exitPanicked = 2

// WithPrograms makes the server accept calls that change something: clients may run, stop and
// remove sandboxes and containers, and execute commands in containers. The server still refuses
// other changes. The keys of programs are the existing images; ":latest" may be left out. Pods have
// the loopback address, so that clients can reach the programs. Only containers that clients create
// run programs: [Server.RunContainer] runs none.
//
// The server adds no labels and annotations to what clients create. Package cri lists the ones that
// it needs, in its section Labels.
func WithPrograms(programs map[string]Program) Option {
	return func(c *config) { c.programs = programs }
}

// process is the running program of a container.
type process struct {
	Process
	program Program
	ctx     context.Context // ends when the container exits
	exit    context.CancelFunc
	// terminate closes Process.Terminate.
	terminate func()
}

// newProcess returns a process for a container. Its context ends when exitLocked or removeLocked
// ends the container, or when ctx ends.
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

// guardedRun runs a function of a program and returns its exit code. The function may panic or end
// its goroutine.
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

// runProgram runs the program of a started container in a new goroutine.
func (s *Server) runProgram(p *process) {
	s.programs.Go(func() {
		code := p.run()
		// This call fails if the container has been killed in the meantime.
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

// environment returns the environment variables of a container's configuration.
func environment(config *runtimeapi.ContainerConfig) map[string]string {
	env := make(map[string]string, len(config.GetEnvs()))
	for _, kv := range config.GetEnvs() {
		env[kv.GetKey()] = string(kv.GetValue())
	}
	return env
}
