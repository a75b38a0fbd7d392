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

// DefaultRuntime is the runtime that runs if no other one is chosen.
const DefaultRuntime = "containerd-2.4"

// These environment variables choose the runtime. The first two also have a flag; the variable is
// the default of the flag.
const (
	runtimeVariable = "PLEG_RUNTIME"
	crioVariable    = "PLEG_CRIO"
	driverVariable  = "PLEG_CGROUP_DRIVER" // cgroupfs or systemd; for containerd
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

// RegisterFlags registers flags of a test or program that choose the runtime.
func RegisterFlags() {
	flag.StringVar(&runtimeName, "runtime", runtimeName,
		"the runtime to run, also by "+runtimeVariable+": "+strings.Join(Names(), ", "))
	flag.StringVar(&crioFolder, "crio", crioFolder,
		"the folder that has CRI-O's programs, crio or crio.xz, and pinns, also by "+crioVariable)
}

// Runtime is a container runtime that tests can run, with its properties.
type Runtime struct {
	// Name is the name by which the runtime is chosen.
	Name string
	// Reports is the beginning of the name and version that the runtime reports.
	Reports string
	// Events is true if the runtime sends every event to each reader of its event stream.
	Events bool
	// StreamingLists is true if the runtime has streaming lists.
	StreamingLists bool
	// TakesSocket is true if the runtime starts while another process listens at its socket, and
	// then replaces the socket. CRI-O does not start in this case.
	TakesSocket bool
	// ForgottenExit is the exit code that the runtime reports for a container that ended while the
	// runtime was down; 0 if it reports the correct code.
	ForgottenExit int
	// LosesExits is true if a killed runtime may forget a container that it was starting. The
	// runtime then shows the container as unknown, and misses its end. This happens with containerd
	// 1.6 ("Failed to load container status: failed to load task: error creating fifo").
	LosesExits bool
	// MissesExits is true if the runtime may miss the end of a container while it starts. Until its next
	// start, it then shows the container as running. CRI-O starts to watch its exit files only after it has
	// read the states of all containers.
	MissesExits bool
	// GivesUp is true if a killed and restarted runtime may mistake live pods for dead ones.
	// containerd 1.7 does this if a shim answers too late: its log says that it cleans up after the
	// shim.
	GivesUp bool
	// LocksStatuses is true if the runtime locks a container's status while runc changes the
	// container's resources. All container lists and all events of the runtime wait for the lock.
	LocksStatuses bool
	// LateExits is true if the runtime shows an exit only after runc has deleted the container.
	LateExits bool

	// EarlyBy is how much earlier than the real end the end time of a container may be. CRI-O takes
	// the end time from a file's timestamp. The kernel's clock for files ticks every 1 to 10 ms.
	EarlyBy time.Duration

	family family
}

// family contains the differences between containerd and CRI-O. The argument dir is the folder of
// one daemon. The argument programs is the folder that prepare returned.
type family interface {
	// prepare installs or builds missing programs.
	prepare(ctx context.Context) (programs string, err error)
	// configure writes the configuration.
	configure(dir, programs string) error
	// socket returns the path of the daemon's socket.
	socket(dir string) string
	// exitsDir returns the daemon's folder of exit files, or "" if it has none.
	exitsDir(dir string) string
	// command returns the daemon and its arguments. One argument must be a path in dir.
	command(dir, programs string) []string
	// importImage imports the archive of an image. The daemon may be running.
	importImage(ctx context.Context, dir, programs, archive, name string) error
}

// Runtimes returns all runtimes.
func Runtimes() []Runtime {
	var all []Runtime
	for _, c := range containerds {
		all = append(all, Runtime{
			Name:    "containerd-" + c.version[:len("0.0")],
			Reports: "containerd " + c.version,
			// 1.6 has no event stream. 1.7 sends each event to only one reader. So a generator does
			// not use this stream unless an option says that the generator is the only reader.
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
			MissesExits: true, EarlyBy: 10 * time.Millisecond, family: crio{events},
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

// Chosen returns the runtime that Start will start.
func Chosen() (Runtime, error) { return named(runtimeName) }

func named(name string) (Runtime, error) {
	all := Runtimes()
	i := slices.IndexFunc(all, func(r Runtime) bool { return r.Name == name })
	if i < 0 {
		return Runtime{}, fmt.Errorf("there is no runtime %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return all[i], nil
}
