package cri

import (
	"path/filepath"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Option is an option of Connect, Dial and NewRuntime. A nil Option is ignored.
type Option func(*options)

type options struct {
	clock             clock.PassiveClock
	logger            *klog.Logger
	plainLists        bool
	sharedEventStream bool
	noExitEvents      bool
	exitsDir          string // CRI-O's directory of exit files; if empty, they are not read
	exitsDirGiven     bool   // true if WithExitsDir was used
	stateDir          string // containerd's state directory
	stateDirGiven     bool   // true if WithStateDir was used
	noKubeletMetrics  bool
	byMetadata        bool
	hostRoot          string
	annotations       []string // the keys to keep; used only if annotationsChosen is true
	annotationsChosen bool
	info              bool     // true if WithInfo was used
	infoEnv           []string // the environment variables in Info.Env
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

// WithLogger sets the logger. By default, each call logs to the logger in its context.
func WithLogger(logger klog.Logger) Option {
	return func(o *options) { o.logger = &logger }
}

// WithClock sets the clock, for tests. It times calls, and decides when the status of an exited
// container has settled and when streaming lists are tried again. The default is the real clock. A
// PassiveClock is enough, because the package only reads the time.
func WithClock(c clock.PassiveClock) Option {
	return func(o *options) { o.clock = c }
}

// WithPlainLists turns streaming lists off: full lists always use ListPodSandbox and
// ListContainers, and must fit in one message each.
func WithPlainLists() Option {
	return func(o *options) { o.plainLists = true }
}

// WithSharedEventStream makes WatchContainerEvents read containerd 1.7's CRI stream instead of
// containerd's own. Use it only if no other program on the node reads the CRI stream: containerd
// 1.7 sends each event to only one of its readers.
func WithSharedEventStream() Option {
	return func(o *options) { o.sharedEventStream = true }
}

// WithoutExitEvents turns WatchContainerExits off, so that the package never reads containerd's own
// stream. With containerd 1.6 and 1.7, WatchContainerEvents needs that stream too, so the option
// turns it off as well. CRI alone then reports exits: later, and without exit codes while the
// runtime is away. On containerd 1.6 and 1.7, the next list finds the changes. On 1.7,
// WithSharedEventStream turns WatchContainerEvents on again.
func WithoutExitEvents() Option {
	return func(o *options) { o.noExitEvents = true }
}

// DefaultExitsDir is the default of CRI-O's container_exits_dir, the directory of its exit files.
const DefaultExitsDir = "/run/crio/exits"

// WithExitsDir is for CRI-O: it sets the directory of the exit files, CRI-O's container_exits_dir,
// as this process sees it. The default is DefaultExitsDir, if it exists. If dir is empty, the files
// are not read. Other runtimes write no exit files.
func WithExitsDir(dir string) Option {
	return func(o *options) { o.exitsDir, o.exitsDirGiven = dir, true }
}

// WithStateDir is for containerd: it sets containerd's state directory, as this process sees it.
// There, WatchContainerExits finds the containers whose shims it asks while containerd is away. By
// default it looks in the folder of containerd's socket, then at the socket's path without ".sock".
// Then it looks in the directory that containerd's verbose Status names. If dir is empty, the shims
// are not asked. Other runtimes do not use this directory.
func WithStateDir(dir string) Option {
	return func(o *options) { o.stateDir, o.stateDirGiven = dir, true }
}

// WithHostRoot sets the directory where this container has mounted the root of its node, such as
// "/host". Connect and Dial then look for the default sockets below it:
// run/containerd/containerd.sock, run/crio/crio.sock, run/cri-dockerd.sock and
// run/k3s/containerd/containerd.sock. Without WithExitsDir, CRI-O's exit files are below it too. If
// containerd's socket is a link, its target is first looked for below this directory. The sockets
// of containerd's shims are looked for in the same way. The option does not change an endpoint that
// you name.
func WithHostRoot(dir string) Option {
	return func(o *options) { o.hostRoot = dir }
}

// WithoutKubeletMetrics leaves out the metrics whose names begin with kubelet_, for a program that
// already exports such metrics. pleg.WithoutKubeletMetrics does the same for the generator's
// metrics.
func WithoutKubeletMetrics() Option {
	return func(o *options) { o.noKubeletMetrics = true }
}

// WithAnnotations keeps only the annotations with these keys in pods, containers and statuses;
// without keys, it keeps none. By default all are kept, and a pod may have 256 KiB of annotations.
// The runtime still sends them all. If the option is given more than once, the keys add up.
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

// WithInfo makes each inspection ask for the Info of the pod's containers and sandboxes too; InfoOf
// returns it. The calls stay the same, but are verbose: an answer takes 10 to 50 KiB. Info.Env
// contains only the environment variables with the given names; Spec and Raw are empty. A text longer
// than 4 KiB is left out. If the runtime reports no info, InfoOf returns nil. If the option is given
// more than once, the names add up.
func WithInfo(env ...string) Option {
	return func(o *options) { o.info, o.infoEnv = true, append(o.infoEnv, env...) }
}

// WithPodsByMetadata also lists pods that the kubelet has not made. Normally, sandboxes without the
// kubelet's label are skipped. With this option, such a sandbox and its containers belong to the
// pod in the sandbox's CRI metadata. crictl and fakes such as k8s.io/cri-client/pkg/fake make such
// sandboxes. With this option, GetPod costs two plain lists of the whole node, because no filter
// selects such pods.
func WithPodsByMetadata() Option {
	return func(o *options) { o.byMetadata = true }
}

// WithDialOptions adds options to the connection that Connect and Dial make, such as
// OpenTelemetry's stats handler. They can override the package's own options: credentials, the size
// of messages, the delay between attempts, and the dialer. With grpc.WithContextDialer, Dial reaches
// a server that has no socket, such as a criserver in a testing/synctest bubble; see the example of
// criserver.WithListener. If WithDialOptions is given more than once, the dial
// options add up. Nil is ignored. NewRuntime ignores them, because its caller has made the
// connection.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) {
		for _, opt := range opts {
			if opt != nil {
				o.dialOptions = append(o.dialOptions, opt)
			}
		}
	}
}
