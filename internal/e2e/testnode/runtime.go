package testnode

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// DefaultRuntime is the runtime that runs if none is named.
const DefaultRuntime = "containerd-2.4"

// The variables that choose what runs. Flags, where they exist, have these values as defaults.
const (
	runtimeVariable = "PLEG_RUNTIME"
	crioVariable    = "PLEG_CRIO"
	driverVariable  = "PLEG_CGROUP_DRIVER" // of containerd: cgroupfs or, where systemd runs, systemd
)

var (
	runtimeName = variable(runtimeVariable, DefaultRuntime)
	crioFolder  = variable(crioVariable, "")

	systemdDriver = variable(driverVariable, "cgroupfs") == "systemd"
)

func variable(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// RegisterFlags lets the command line of a test or program choose the runtime.
func RegisterFlags() {
	flag.StringVar(&runtimeName, "runtime", runtimeName,
		"the runtime to run, also by "+runtimeVariable+": "+strings.Join(Names(), ", "))
	flag.StringVar(&crioFolder, "crio", crioFolder,
		"the folder that has CRI-O's programs, crio or crio.xz, and pinns, also by "+crioVariable)
}

// Runtime is a container runtime that tests can run, and what it promises.
type Runtime struct {
	// Name is the name by which it is chosen.
	Name string
	// Reports is the beginning of the name and version that it reports.
	Reports string
	// Events is true if it has an event stream that gives a generator every event.
	Events bool
	// StreamingLists is true if it has streaming lists.
	StreamingLists bool
	// TakesSocket is true if it starts although another process listens at its socket, and replaces
	// that socket. CRI-O refuses.
	TakesSocket bool
	// ForgottenExit is the exit code that it reports for a container that ended while the runtime
	// did not run; 0 if it reports the right one.
	ForgottenExit int
	// LosesExits is true if a killed runtime may forget a container that it was starting, and show
	// it as unknown. It then misses its end: containerd 1.6 ("Failed to load container status:
	// failed to load task: error creating fifo").
	LosesExits bool
	// GivesUp is true if a killed and restarted runtime may take live pods for dead. containerd 1.7
	// cleans up after shims that do not answer soon enough, as its log says.
	GivesUp bool
	// LocksStatuses is true if it holds a container's status while runc changes the container's
	// resources. All its container lists and events wait for that.
	LocksStatuses bool
	// LateExits is true if it shows an exit only after runc has deleted the container.
	LateExits bool

	// EarlyBy is how much too early it may stamp the end of a container. CRI-O has the time from a
	// file, and the kernel stamps files by a clock that ticks every 1 to 10 ms.
	EarlyBy time.Duration

	family family
}

// family is what differs between containerd and CRI-O. dir is the folder of one daemon, programs
// the folder that prepare returned.
type family interface {
	// prepare gets what is missing.
	prepare(ctx context.Context) (programs string, err error)
	// configure writes the configuration.
	configure(dir, programs string) error
	// socket is the path of its socket.
	socket(dir string) string
	// exitsDir is its folder of exit files; empty if it has none.
	exitsDir(dir string) string
	// command is the daemon and its arguments, one of which is a path in dir.
	command(dir, programs string) []string
	// importImage imports the archive of an image. The daemon may run.
	importImage(ctx context.Context, dir, programs, archive, name string) error
}

// Runtimes returns all runtimes.
func Runtimes() []Runtime {
	var all []Runtime
	for _, c := range containerds {
		all = append(all, Runtime{
			Name:    "containerd-" + c.version[:len("0.0")],
			Reports: "containerd " + c.version,
			// 1.6 has no event stream. 1.7 gives each event to only one reader, so a generator does
			// not use it unless an option says that it is the only reader.
			Events:         c.version >= "2.0",
			StreamingLists: c.version >= "2.4",
			TakesSocket:    true,
			ForgottenExit:  255,
			LosesExits:     c.version < "1.7",
			LocksStatuses:  true,
			LateExits:      true,
			GivesUp:        strings.HasPrefix(c.version, "1.7."),
			family:         c,
		})
	}
	for _, events := range []bool{true, false} {
		r := Runtime{
			Name: "crio", Reports: "cri-o " + crioVersion, Events: events, StreamingLists: true,
			EarlyBy: 10 * time.Millisecond, family: crio{events},
		}
		if !events {
			r.Name = "crio-no-events"
		}
		all = append(all, r)
	}
	return all
}

// Names returns the names of all runtimes.
func Names() []string {
	var names []string
	for _, r := range Runtimes() {
		names = append(names, r.Name)
	}
	return names
}

// Chosen returns the runtime that Start starts.
func Chosen() (Runtime, error) { return named(runtimeName) }

func named(name string) (Runtime, error) {
	all := Runtimes()
	i := slices.IndexFunc(all, func(r Runtime) bool { return r.Name == name })
	if i < 0 {
		return Runtime{}, fmt.Errorf("there is no runtime %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return all[i], nil
}
