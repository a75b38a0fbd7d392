package cri

import (
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Option changes how a Runtime works.
type Option func(*options)

type options struct {
	clock             clock.PassiveClock
	logger            *klog.Logger
	plainLists        bool
	sharedEventStream bool
	noExitEvents      bool
	exitsDir          string // of CRI-O; empty for none
	exitsDirGiven     bool   // true if WithExitsDir named it
	noKubeletMetrics  bool
	dialOptions       []grpc.DialOption
	info              func(*runtimeapi.ContainerStatusResponse) any
}

func newOptions(opts []Option) options {
	o := options{clock: clock.RealClock{}, exitsDir: DefaultExitsDir}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// WithLogger sets the logger. Without it, each call logs to the logger in its
// context.
func WithLogger(logger klog.Logger) Option {
	return func(o *options) { o.logger = &logger }
}

// WithClock sets the clock, for tests. Calls are timed with it, and it decides when the
// status of an exited container has settled and when streaming lists are retried. The
// default is the real clock.
func WithClock(c clock.PassiveClock) Option {
	return func(o *options) { o.clock = c }
}

// WithPlainLists turns streaming lists off: full lists always use ListPodSandbox and
// ListContainers, and must fit in 16 MiB each.
func WithPlainLists() Option {
	return func(o *options) { o.plainLists = true }
}

// WithSharedEventStream has WatchContainerEvents read the CRI's stream of containerd 1.7, which
// delivers each event to only one of its readers, instead of containerd's own. Use it only if
// nothing else on the node reads that stream: otherwise both readers lose events.
func WithSharedEventStream() Option {
	return func(o *options) { o.sharedEventStream = true }
}

// WithoutExitEvents turns WatchContainerExits off: exits come from the CRI alone, later and, while the
// runtime is away, without their codes. No verbose status is asked for then, except with WithInfo, and
// WatchContainerEvents does not read containerd's own stream.
func WithoutExitEvents() Option {
	return func(o *options) { o.noExitEvents = true }
}

// DefaultExitsDir is the folder in which CRI-O has the exit files, its
// container_exits_dir, unless it is configured otherwise.
const DefaultExitsDir = "/run/crio/exits"

// WithExitsDir sets the folder of CRI-O's exit files, its container_exits_dir as this process
// sees it. The default is DefaultExitsDir, if it exists. If dir is empty, the files are not read.
// Other runtimes have none.
func WithExitsDir(dir string) Option {
	return func(o *options) { o.exitsDir, o.exitsDirGiven = dir, true }
}

// WithoutKubeletMetrics leaves the metrics out whose names begin with kubelet_, for a host that has
// its own: pleg.WithoutKubeletMetrics is about the generator's alone.
func WithoutKubeletMetrics() Option {
	return func(o *options) { o.noKubeletMetrics = true }
}

// WithDialOptions adds options to the connection that Connect and Dial make, such as
// OpenTelemetry's stats handler. They come after the package's own, which they can
// override: credentials, the size of messages, the delay between attempts. Given more than
// once, the options add up. Nil options are ignored. NewRuntime, whose caller has made the
// connection, ignores all of them.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) {
		for _, opt := range opts {
			if opt != nil {
				o.dialOptions = append(o.dialOptions, opt)
			}
		}
	}
}

// WithInfo has the runtime asked once for all that it tells of a running container, with a verbose
// ContainerStatus, and keeps what info makes of the answer as Source of the container's Status, for
// as long as the container is listed. What Info of the answer has is the runtime's affair:
// containerd and CRI-O give JSON with the PID, the runtime's specification and more. info is called
// in the goroutine of a call, several at once; what it keeps of the answer stays in memory, so it
// should copy out what it needs. If it panics, the inspection fails.
//
// A container that starts costs one larger answer, some 10 to 50 KiB; inspections after that cost
// what they cost without the option. By default only the PID is read, of containers that ran before
// exits were watched.
func WithInfo(info func(*runtimeapi.ContainerStatusResponse) any) Option {
	return func(o *options) { o.info = info }
}
