package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

// rpc is a kind of call that this package makes. Each kind only reads.
type rpc int

const (
	rpcVersion rpc = iota
	rpcListPodSandbox
	rpcListContainers
	rpcStreamPodSandboxes
	rpcStreamContainers
	rpcPodSandboxStatus
	rpcContainerStatus
	rpcStatus // called only if other ways do not find containerd's bundles
	rpcGetContainerEvents
	rpcSubscribe // belongs to containerd's API, not CRI; not called with WithoutExitEvents
	rpcCount
)

// rpcs contains each call's method and its value of the metric label operation_type: the kubelet's
// name, or a similar name. A streamed list uses the name of the plain list that it replaces, so
// that dashboards keep working.
var rpcs = [rpcCount]struct{ method, operation string }{
	rpcVersion:            {"/runtime.v1.RuntimeService/Version", "version"},
	rpcListPodSandbox:     {"/runtime.v1.RuntimeService/ListPodSandbox", "list_podsandbox"},
	rpcListContainers:     {"/runtime.v1.RuntimeService/ListContainers", "list_containers"},
	rpcStreamPodSandboxes: {"/runtime.v1.RuntimeService/StreamPodSandboxes", "list_podsandbox"},
	rpcStreamContainers:   {"/runtime.v1.RuntimeService/StreamContainers", "list_containers"},
	rpcPodSandboxStatus:   {"/runtime.v1.RuntimeService/PodSandboxStatus", "podsandbox_status"},
	rpcContainerStatus:    {"/runtime.v1.RuntimeService/ContainerStatus", "container_status"},
	rpcStatus:             {"/runtime.v1.RuntimeService/Status", "status"},
	rpcGetContainerEvents: {"/runtime.v1.RuntimeService/GetContainerEvents", "get_container_events"},
	rpcSubscribe:          {"/containerd.services.events.v1.Events/Subscribe", "subscribe_events"},
}

// String returns a short name of the call for logs: "ListContainers", "Events/Subscribe".
func (r rpc) String() string {
	method := rpcs[r].method
	return strings.TrimPrefix(method[strings.LastIndexByte(method, '.')+1:], "RuntimeService/")
}

// target is what a call is about, such as a container or a stream. Any field may be empty.
type target struct {
	podUID types.UID
	kind   string // "container", "sandbox", "the event stream", "the exit events"; empty for lists
	name   string
	id     string
}

// String returns the object in a readable form: "container app (3f2a…)".
func (t target) String() string {
	switch {
	case t.id == "":
		return t.kind
	case t.name == "":
		return fmt.Sprintf("%s (%s)", t.kind, shortID(t.id))
	}
	return fmt.Sprintf("%s %s (%s)", t.kind, cutText(t.name), shortID(t.id))
}

// shortID shortens an ID to the 13 characters that command line tools show and accept.
func shortID(id string) string {
	const shown = 13
	if len(id) <= shown {
		return id
	}
	return id[:shown] + "…"
}

// call is a call in flight.
type call struct {
	rpc    rpc
	target target
	since  time.Time
}

func (c *call) report() pleg.RuntimeCall {
	return pleg.RuntimeCall{
		Method:   c.rpc.String(),
		PodUID:   c.target.podUID,
		Object:   c.target.String(),
		ObjectID: c.target.id,
		Since:    c.since,
	}
}

// calls are the calls in flight.
type calls struct {
	clock clock.PassiveClock

	mu         sync.Mutex
	pending    []*call   // guarded by mu; oldest first
	lastAnswer time.Time // guarded by mu
}

func (c *calls) add(made *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The lock keeps c.pending sorted by since.
	made.since = c.clock.Now()
	c.pending = append(c.pending, made)
}

func (c *calls) remove(made *call) (took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.pending, made); i >= 0 {
		c.pending = slices.Delete(c.pending, i, i+1)
	}
	return c.clock.Since(made.since)
}

// answered records that the runtime has answered a call with err. It ignores errors of the
// connection and of the caller's context, because they are not answers.
func (c *calls) answered(err error) {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastAnswer = c.clock.Now()
}

func (c *calls) inFlight() ([]pleg.RuntimeCall, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]pleg.RuntimeCall, len(c.pending))
	for i, p := range c.pending {
		list[i] = p.report()
	}
	return list, c.lastAnswer
}

// do makes one call to the runtime: f calls the client with ctx. If the client panics, do returns
// an error.
func (r *Runtime) do(ctx context.Context, made rpc, of target, f func() error) (err error) {
	c := r.begin(made, of)
	attempt(f, func(failure error) { err = r.end(ctx, c, failure) })
	return err
}

// begin records that a call begins. The caller must call end.
func (r *Runtime) begin(made rpc, of target) *call {
	c := &call{rpc: made, target: of}
	r.calls.add(c)
	return c
}

// end records that a call has returned, and counts it. If the call failed, the returned error adds
// the names of the call, its object and its endpoint. errNoStreamingLists is not counted as an
// error, because it is an answer of the runtime.
func (r *Runtime) end(ctx context.Context, c *call, err error) error {
	cause := context.Cause(ctx)
	r.calls.answered(err)
	if status.Code(err) == codes.Canceled && errors.Is(cause, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", cause, err) // the deadline ended the call; the caller did not
	}
	counted := err
	if errors.Is(err, errNoStreamingLists) {
		counted = nil
	}
	r.metrics.observe(c.rpc, r.calls.remove(c), counted)
	return r.wrap(c, err)
}

func (r *Runtime) wrap(c *call, err error) error {
	if err == nil {
		return nil
	}
	what := c.rpc.String()
	if c.target.id != "" {
		what += " of " + c.target.String()
	}
	if c.target.podUID != "" {
		what += " of pod " + cutText(string(c.target.podUID))
	}
	if endpoint := r.endpoint(); endpoint != "" {
		what += " at " + endpoint
	}
	return &callError{fmt.Errorf("cri: %s: %w", what, r.explain(err)), c.report()}
}

// callError is the error of a call. It implements pleg.CallError.
type callError struct {
	error
	call pleg.RuntimeCall
}

func (e *callError) Call() *pleg.RuntimeCall { return &e.call }

func (e *callError) Unwrap() error { return e.error }
