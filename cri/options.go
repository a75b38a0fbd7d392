package cri

import (
	"path/filepath"

	"google.golang.org/grpc"
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
	byMetadata        bool
	hostRoot          string
	annotations       []string // the keys that are kept, if chosen
	annotationsChosen bool
	dialOptions       []grpc.DialOption
}

func newOptions(opts []Option) options {
	o := options{clock: clock.RealClock{}, exitsDir: DefaultExitsDir}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if !o.exitsDirGiven {
		o.exitsDir = filepath.Join(o.hostRoot, o.exitsDir)
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
// ListContainers, and must fit in one message each.
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
// runtime is away, without their codes. Inspections ask for no verbose status then, and
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

// WithHostRoot sets the folder at which a container has the root of its node mounted, such as "/host".
// The default sockets of Connect and Dial are below it: run/containerd/containerd.sock,
// run/crio/crio.sock, run/cri-dockerd.sock and run/k3s/containerd/containerd.sock. So are CRI-O's exit
// files, without WithExitsDir. An endpoint that you name is taken as it is.
func WithHostRoot(dir string) Option {
	return func(o *options) { o.hostRoot = dir }
}

// WithoutKubeletMetrics leaves the metrics out whose names begin with kubelet_, for a host that has
// its own: pleg.WithoutKubeletMetrics is about the generator's alone.
func WithoutKubeletMetrics() Option {
	return func(o *options) { o.noKubeletMetrics = true }
}

// WithAnnotations keeps only the annotations with these keys, or none at all, in pods, containers and
// statuses. By default all are kept, and they are the tenants': a pod may have 256 KiB of them. They
// are still received from the runtime. Given more than once, the keys add up.
func WithAnnotations(keys ...string) Option {
	return func(o *options) {
		o.annotations, o.annotationsChosen = append(o.annotations, keys...), true
	}
}

// keptAnnotations returns the annotations that the options keep.
func (o *options) keptAnnotations(all map[string]string) map[string]string {
	if !o.annotationsChosen {
		return all
	}
	var chosen map[string]string
	for _, key := range o.annotations {
		if value, ok := all[key]; ok {
			if chosen == nil {
				chosen = make(map[string]string)
			}
			chosen[key] = value
		}
	}
	return chosen
}

// WithPodsByMetadata also lists pods that the kubelet has not made: a sandbox without the kubelet's label
// belongs to the pod that its CRI metadata names, and its containers with it. crictl makes such sandboxes,
// and so do fakes such as k8s.io/cri-client/pkg/fake. By default they are skipped. With this option GetPod
// costs two plain lists of the whole node, because no filter selects such pods.
func WithPodsByMetadata() Option {
	return func(o *options) { o.byMetadata = true }
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
