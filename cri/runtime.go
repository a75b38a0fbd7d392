package cri

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
)

// maxReceivedBytes is the size of the largest message that the package accepts. It is four times
// the kubelet's limit, because 110 pods with 256 KiB of annotations each exceed the kubelet's
// limit. Each call sets maxReceivedBytes, even on a connection that the caller made.
const maxReceivedBytes = 64 << 20

// criVersion is the API version in the request of a Version call.
const criVersion = "v1"

// Runtime is a CRI v1 runtime as a pleg.Runtime. It is also a pleg.PodGetter, a pleg.EventSource, a
// pleg.ExitSource, a pleg.CallReporter, a pleg.Describer and a prometheus.Collector. The generator
// registers the collector on the generator's own registerer.
//
// Its methods may be called from several goroutines at once.
type Runtime struct {
	// The constructors set these fields, which do not change afterwards.
	client  client
	conn    *grpc.ClientConn // nil if the caller owns the connection
	dialer  *dialer          // the dialer of conn
	opts    options
	calls   *calls
	metrics *metrics

	closed   atomic.Bool
	reported badReporter

	// relisting contains one token. A full list takes it before it begins. So only one full list runs
	// at a time, and no other code uses held and streaming.
	relisting chan struct{}
	held      *held
	streaming streaming

	exits exitWatches
	// stateDir is the state directory that containerd has reported; nil before its report.
	stateDir atomic.Pointer[string]

	// version is the runtime's last answer to Version; nil before the first answer.
	version atomic.Pointer[runtimeVersion]
	// listMode is how the last full list was completed. Its value is a listMode.
	listMode atomic.Int32
	// listFailed is true if the last full list has failed.
	listFailed atomic.Bool
	// searching is the search of the last full list, if that list has timed out; otherwise nil. It is
	// used by full lists and Close only, one at a time.
	searching *search
}

var (
	_ pleg.Runtime      = (*Runtime)(nil)
	_ pleg.PodGetter    = (*Runtime)(nil)
	_ pleg.EventSource  = (*Runtime)(nil)
	_ pleg.ExitSource   = (*Runtime)(nil)
	_ pleg.CallReporter = (*Runtime)(nil)
	_ pleg.Describer    = (*Runtime)(nil)
)

// runtimeVersion is a runtime's answer to Version.
type runtimeVersion struct{ name, version string }

// NewRuntime returns a Runtime that uses the given connection, such as a *grpc.ClientConn. It makes
// no call: the first list asks for the runtime's version, and fails if that call fails. Close does
// not close the connection. NewRuntime panics if conn is nil.
//
// The connection reconnects in its own way: after a long outage, gRPC's default waits up to two
// minutes. There are no exit events without WithExitsDir. Dial with WithDialOptions has neither
// limit.
//
// A connection that ignores call options, such as a fake, works too. Its messages may be larger
// than 64 MiB, its statuses have no stop signals, and all items of its lists are decoded.
// Such a connection must not modify labels and annotations after it has returned them, because pods
// share the maps.
func NewRuntime(conn grpc.ClientConnInterface, opts ...Option) *Runtime {
	if conn == nil {
		panic("cri.NewRuntime: the connection is nil") //nolint:forbidigo // a bug of the caller; no error result
	}
	o := newOptions(opts)
	r := &Runtime{
		client:    client{conn},
		dialer:    new(dialer),
		opts:      o,
		calls:     &calls{clock: o.clock},
		metrics:   newMetrics(&o),
		relisting: make(chan struct{}, 1),
		held:      newHeld(),
		exits:     exitWatches{recovered: make(chan struct{}, 1), watches: map[*shimWatch]bool{}},
	}
	r.held.started = map[string]uint64{}
	if o.plainLists {
		r.streaming.off = true
		r.listMode.Store(int32(listsPlain))
	}
	return r
}

// Close closes the connection that Connect or Dial made. This ends every call in flight and every
// attempt to connect. Close does nothing if the Runtime comes from NewRuntime or is already closed.
func (r *Runtime) Close() error {
	if r.conn == nil || r.closed.Swap(true) {
		return nil
	}
	err := r.conn.Close()
	r.relisting <- struct{}{} // a full list ends now, because its calls have ended
	defer func() { <-r.relisting }()
	if s := r.searching; s != nil {
		r.searching = nil
		s.kept.Stop()
		r.endSearch(s, false)
	}
	return err
}

// Conn returns the connection to the runtime, for other calls, such as those of
// runtimeapi.NewImageServiceClient(r.Conn()). Calls over it are not counted, and CallsInFlight does
// not return them. Conn returns nil if NewRuntime was called with a connection that is not a
// *grpc.ClientConn.
func (r *Runtime) Conn() *grpc.ClientConn {
	conn, _ := r.client.conn.(*grpc.ClientConn)
	return conn
}

// Version returns the runtime's name and version, such as "containerd" and "v2.4.2", from its last
// answer. Both are empty before the first answer. Version makes no call.
func (r *Runtime) Version() (name, version string) {
	if v := r.version.Load(); v != nil {
		return v.name, v.version
	}
	return "", ""
}

// endpoint returns the runtime's endpoint; empty if it is not known.
func (r *Runtime) endpoint() string {
	if path := r.dialer.path.Load(); path != nil {
		return "unix://" + *path
	}
	return ""
}

// DescribeRuntime returns the runtime's name, version and endpoint, and how the last full list was
// completed, such as "containerd 2.4.2 at unix:///run/containerd/containerd.sock, streaming lists".
// It also names the sources of exit events.
func (r *Runtime) DescribeRuntime() string {
	var b strings.Builder
	if v := r.version.Load(); v != nil {
		b.WriteString(v.name + " " + v.version)
	} else {
		b.WriteString("a CRI runtime that has not answered yet")
	}
	if endpoint := r.endpoint(); endpoint != "" {
		b.WriteString(" at " + endpoint)
	}
	switch listMode(r.listMode.Load()) {
	case listsUnknown:
	case listsStreaming:
		b.WriteString(", streaming lists")
	case listsPlain:
		b.WriteString(", plain lists")
	}
	b.WriteString(r.exits.describe())
	return b.String()
}

// CallsInFlight returns the calls to the runtime that have not returned, oldest first. lastAnswer
// is when the runtime last answered a call, with an error or without; zero for never. A stream of
// events is among the calls only until the runtime has accepted it.
//
// While a full list takes longer than three seconds, the Runtime asks for the version every three
// seconds. Once, on containerd, it also asks for the status of each container that no full list has
// shown. So the calls include the status call for the container that blocks the lists.
func (r *Runtime) CallsInFlight() (inFlight []pleg.RuntimeCall, lastAnswer time.Time) {
	return r.calls.inFlight()
}

// knownVersion returns the runtime's last answer to Version. It asks the runtime only if there is
// no answer yet. Lists need the runtime's name, because it is part of every container ID.
func (r *Runtime) knownVersion(ctx context.Context) (*runtimeVersion, error) {
	if v := r.version.Load(); v != nil {
		return v, nil
	}
	return r.askVersion(ctx, target{})
}

func (r *Runtime) askVersion(ctx context.Context, of target) (*runtimeVersion, error) {
	var v *runtimeVersion
	err := r.do(ctx, rpcVersion, of, func() (err error) {
		v, err = r.fetchVersion(ctx)
		return err
	})
	return v, err
}

// fetchVersion asks the runtime for its version. Unlike askVersion, it does not count or time the
// call.
func (r *Runtime) fetchVersion(ctx context.Context) (*runtimeVersion, error) {
	resp, err := r.client.version(ctx, &runtimeapi.VersionRequest{Version: criVersion}, grpc.ForceCodecV2(&utf8Codec{}))
	if err != nil {
		return nil, err
	}
	v := &runtimeVersion{name: cutText(resp.GetRuntimeName()), version: cutText(resp.GetRuntimeVersion())}
	r.version.Store(v)
	return v, nil
}

// log returns the logger of the options or, without such an option, the logger in ctx.
func (r *Runtime) log(ctx context.Context) klog.Logger {
	if r.opts.logger != nil {
		return *r.opts.logger
	}
	return klog.FromContext(ctx)
}
