package pleg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/calls"
)

// HealthReport is the state of a generator, for logs and for a health endpoint.
type HealthReport struct {
	// Healthy and Reason are what Healthy returns.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// Runtime is the runtime's description of itself, if it is a Describer.
	Runtime string `json:"runtime,omitempty"`
	// LastRelist is when the last successful full relist began; zero if there was none.
	LastRelist time.Time `json:"lastRelist,omitzero"`
	// RelistError is the error of the last full relist, if it failed.
	RelistError string `json:"relistError,omitempty"`
	// Pods is the number of pods in the lists.
	Pods int `json:"pods"`
	// CallsInFlight are the calls that have not returned, oldest first: the runtime's own
	// calls if it is a CallReporter, else the generator's calls of Runtime. An event stream is
	// among them until the runtime accepts it.
	CallsInFlight []RuntimeCall `json:"callsInFlight,omitempty"`
	// FailingPods are the pods whose inspection hangs or has failed, by UID.
	FailingPods []FailingPod `json:"failingPods,omitempty"`
	// Stream is the state of the event stream.
	Stream StreamReport `json:"stream"`
	// ExitStream is the state of the stream of exits; see ExitSource.
	ExitStream StreamReport `json:"exitStream"`
	// HungRelist is the full relist that has run for longer than a period, and for twice as long as
	// the last one; nil if none has.
	HungRelist *HungRelist `json:"hungRelist,omitempty"`
	// UnconfirmedExits are the containers that have exited by an exit event of more than a
	// relist period ago, and that the runtime's lists and statuses still show running, by pod.
	UnconfirmedExits []UnconfirmedExit `json:"unconfirmedExits,omitempty"`
	// BlockedReaders is the number of readers that wait on the cache.
	BlockedReaders int `json:"blockedReaders"`
	// Subscribers is the number of subscriptions.
	Subscribers int `json:"subscribers"`
	// Backlog is the number of pods with updates that did not fit into a subscriber's
	// channel, or that Handle has not handled, summed over the subscribers.
	Backlog int `json:"backlog"`
	// NamedSubscribers are the subscriptions that have a name, by name.
	NamedSubscribers []SubscriberReport `json:"namedSubscribers,omitempty"`
}

// HungRelist is a full relist that has run for longer than a period, and for twice as long as the last
// one, or ten seconds. While it does, the pods that are known are inspected in turn, each at most every
// other period.
type HungRelist struct {
	// Since is when it began.
	Since time.Time `json:"since"`
	// Suspects are the pods of which an inspection hangs too, by UID: of what holds up the
	// runtime, most likely something is in one of them.
	Suspects []FailingPod `json:"suspects,omitempty"`
	// Answered is the number of pods of which an inspection has succeeded since.
	Answered int `json:"answered"`
}

// UnconfirmedExit is a container that has exited by an exit event alone.
type UnconfirmedExit struct {
	PodUID      types.UID `json:"podUID"`
	Namespace   string    `json:"namespace,omitempty"`
	Name        string    `json:"name,omitempty"`
	Container   string    `json:"container,omitempty"`
	ContainerID string    `json:"containerID"`
	ExitCode    int       `json:"exitCode"`
	// Since is when the event came.
	Since time.Time `json:"since"`
}

// SubscriberReport is the state of the subscriptions of one name; see WithName.
type SubscriberReport struct {
	Name string `json:"name"`
	// Subscriptions is the number of subscriptions of that name.
	Subscriptions int `json:"subscriptions"`
	// Backlog is the number of pods with updates that are not delivered, summed over the
	// subscriptions.
	Backlog int `json:"backlog"`
	// BehindSince is when the oldest of these updates became due; zero if all are
	// delivered. What existed when a subscription began became due then.
	BehindSince time.Time `json:"behindSince,omitzero"`
}

// FailingPod is a pod whose inspection has failed, or hangs, which means that it has run for
// longer than a relist period.
type FailingPod struct {
	PodUID    types.UID `json:"podUID"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	// HangingSince is when the hang began: the runtime has answered no inspection of the pod
	// that began then or later. It is zero if none hangs.
	HangingSince time.Time `json:"hangingSince,omitzero"`
	// Failures is the number of failures in a row.
	Failures int `json:"failures,omitempty"`
	// Error is the last failure.
	Error string `json:"error,omitempty"`
}

// StreamState is the state of a stream of the runtime: of events, or of exits.
type StreamState string

const (
	// StreamOff means that the generator is stopped or polling only, or the runtime does not
	// implement EventSource or, for exits, ExitSource.
	StreamOff StreamState = "off"
	// StreamConnecting means that the stream is requested and not yet accepted.
	StreamConnecting StreamState = "connecting"
	// StreamConnected means that the runtime has accepted the stream.
	StreamConnected StreamState = "connected"
	// StreamBroken means that the stream has ended; NextTry is when it is opened again.
	StreamBroken StreamState = "broken"
	// StreamUnsupported means that the runtime has no such stream; NextTry is when it is asked
	// again.
	StreamUnsupported StreamState = "unsupported"
)

// StreamReport is the state of the event stream, or of the stream of exits.
type StreamReport struct {
	State StreamState `json:"state"`
	// Since is when the state was entered.
	Since time.Time `json:"since,omitzero"`
	// LastEvent is when the last event or exit arrived.
	LastEvent time.Time `json:"lastEvent,omitzero"`
	// Error is why the last stream, or the last attempt to open one, ended by itself. It stays
	// while another stream is connected, and after Stop.
	Error string `json:"error,omitempty"`
	// NextTry is when the next connection is attempted at the latest. When a full list
	// succeeds after one that failed, it is attempted at once.
	NextTry time.Time `json:"nextTry,omitzero"`
}

// healthState is what the reconciler hands out for health and metrics. It is a value:
// nothing that it refers to is modified later.
type healthState struct {
	lastList  time.Time // when the last successful full list began; zero for none
	listErr   error     // nil if the last full list succeeded
	listErrAt time.Time
	// lastInspection is when an inspection last succeeded; before the first, when the
	// generator was made.
	lastInspection time.Time
	failing        []FailingPod // by UID; the loop adds them
	// synced: the pods of the first full list that succeeded are inspected, failing or
	// slow.
	synced bool
	pods   int
	tally  tally
	// listHangs: a full list hangs, see HungRelist; answered counts the pods that were
	// inspected since.
	listHangs   bool
	answered    int
	unconfirmed []UnconfirmedExit
}

// healthCheck is the input of the health check: a state, the time, and the calls in flight.
type healthCheck struct {
	healthState
	now       time.Time
	threshold time.Duration
	period    time.Duration
	started   bool
	// inFlight returns the calls of these methods in flight, oldest first, reported those
	// that the runtime reports. Only the reason needs them.
	inFlight func(methods ...string) []RuntimeCall
	reported func() []RuntimeCall
}

// since returns the age of a time.
func (h *healthCheck) since(t time.Time) time.Duration { return h.now.Sub(t) }

// unhealthy is the one rule of health: nil, or the reason.
func (h *healthCheck) unhealthy() error {
	hanging := h.hanging()
	switch {
	case h.lastList.IsZero():
		return fmt.Errorf("pleg has yet to be successful: %w", h.listCause())
	case h.since(h.lastList) > h.threshold:
		return fmt.Errorf("pleg was last seen active %v ago; threshold is %v: %w",
			h.since(h.lastList), h.threshold, h.listCause())
	case len(hanging) >= 2 && h.since(h.lastInspection) > h.threshold:
		return fmt.Errorf("pleg cannot inspect any pod: the inspections of %d pods have hung for longer than %v, "+
			"and none of any pod has succeeded for %v: %s",
			len(hanging), h.threshold, h.since(h.lastInspection), h.inspectionCause(hanging[0]))
	default:
		return nil
	}
}

// hanging returns the pods whose inspection has hung for longer than the threshold,
// oldest first.
func (h *healthCheck) hanging() []FailingPod {
	var hanging []FailingPod
	for _, p := range h.failing {
		if !p.HangingSince.IsZero() && h.since(p.HangingSince) > h.threshold {
			hanging = append(hanging, p)
		}
	}
	slices.SortFunc(hanging, func(a, b FailingPod) int {
		return cmp.Or(a.HangingSince.Compare(b.HangingSince), cmp.Compare(a.PodUID, b.PodUID))
	})
	return hanging
}

// The causes when no list is in flight and none has failed.
var (
	errNotStarted = errors.New("it was not started")
	errNoRelist   = errors.New("no relist is under way")
)

// listCause returns why there is no newer list: the call in flight, and the last error.
func (h *healthCheck) listCause() error {
	var failed error
	if h.listErr != nil {
		failed = fmt.Errorf("the last list failed %v ago: %w", h.since(h.listErrAt), h.listErr)
	}
	listing := h.inFlight(methodGetPods)
	switch {
	case len(listing) > 0:
		call := h.listInFlight(listing[0])
		running := fmt.Errorf("%s has been running for %v%s",
			describeCall(call), max(0, h.since(call.Since)), h.besideList())
		if failed == nil {
			return running
		}
		return fmt.Errorf("%w; %w", running, failed)
	case failed != nil:
		return failed
	case !h.started:
		return errNotStarted
	default:
		return errNoRelist
	}
}

// besideList says what the runtime answers beside a full list that hangs, and what not: the pods
// that hang too are the suspects.
func (h *healthCheck) besideList() (text string) {
	if !h.listHangs {
		return ""
	}
	suspects := h.suspects()
	if len(suspects) > 0 {
		text = "; beside it, " + h.inspectionCause(suspects[0])
	}
	if len(suspects) > 1 {
		text += fmt.Sprintf(", and %d more pods hang", len(suspects)-1)
	}
	if h.answered > 0 {
		text += fmt.Sprintf("; inspections of %d pods are answered", h.answered)
	}
	return text
}

// suspects returns the pods of which an inspection hangs.
func (h *healthCheck) suspects() []FailingPod {
	return slices.DeleteFunc(slices.Clone(h.failing), func(p FailingPod) bool { return p.HangingSince.IsZero() })
}

// unsynced says what is awaited before the generator has synced: the first list, or the
// inspections of its pods.
func (h *healthCheck) unsynced() error {
	if h.lastList.IsZero() {
		return fmt.Errorf("no list has succeeded: %w", h.listCause())
	}
	inspecting := h.inFlight(methodGetPodStatus)
	switch {
	case len(inspecting) > 0:
	case !h.started:
		return errors.New("the pods of the first list are not all inspected, and it does not run")
	default:
		return errors.New("the pods of the first list are not all inspected")
	}
	first := inspecting[0]
	return fmt.Errorf("%s has been running for %v, the oldest of %d inspections",
		describeCall(first), max(0, h.since(first.Since)), len(inspecting))
}

// listInFlight returns the runtime's own call that a list is waiting for, if it reports
// one.
func (h *healthCheck) listInFlight(listing RuntimeCall) RuntimeCall {
	for _, c := range h.reported() {
		if c.PodUID == "" && c.Object == "" {
			return c
		}
	}
	return listing
}

// inspectionCause names the call for a pod that hangs.
func (h *healthCheck) inspectionCause(p FailingPod) string {
	pod := podName(&Pod{Namespace: p.Namespace, Name: p.Name, ID: p.PodUID})
	what := methodGetPodStatus + " of " + pod
	for _, c := range h.reported() {
		if c.PodUID == p.PodUID {
			what = c.Method + " of " + c.Object + " of " + pod
			break
		}
	}
	what = fmt.Sprintf("%s has been unanswered for %v", what, h.since(p.HangingSince))
	if p.Error != "" {
		what += "; the last error: " + p.Error
	}
	return what
}

func describeCall(c RuntimeCall) string {
	if c.Object == "" {
		return c.Method
	}
	return c.Method + " of " + c.Object
}

// report returns the part of a HealthReport that health decides.
func (h *healthCheck) report(stream StreamReport) HealthReport {
	r := HealthReport{
		Healthy: true, LastRelist: h.lastList, Pods: h.pods, Stream: stream, FailingPods: h.failing,
	}
	if err := h.unhealthy(); err != nil {
		r.Healthy, r.Reason = false, err.Error()
	}
	if h.listErr != nil {
		r.RelistError = h.listErr.Error()
	}
	if listing := h.inFlight(methodGetPods); h.listHangs && len(listing) > 0 {
		r.HungRelist = &HungRelist{Since: listing[0].Since, Suspects: h.suspects(), Answered: h.answered}
	}
	for _, e := range h.unconfirmed {
		if h.since(e.Since) > h.period {
			r.UnconfirmedExits = append(r.UnconfirmedExits, e)
		}
	}
	return r
}

// Healthy reports whether the generator works, and if not, why not. It reports false
// before the first successful relist; when the last one began longer ago than the
// threshold; and when the inspections of two pods or more have hung for longer than the
// threshold and no inspection of any pod has succeeded in that time. One pod that hangs
// never makes a node unhealthy: while pods hang, a healthy pod is inspected as a canary
// six times within the threshold.
//
// The error names the call that hangs, the pod or container that it is for, and for how
// long it has hung, or the last error. If a full list hangs, it also names a pod whose
// inspection hangs beside it, and says how many are answered. Healthy has no side effects and
// never blocks.
func (g *GenericPLEG) Healthy() (bool, error) {
	err := g.healthCheck().unhealthy()
	return err == nil, err
}

// HasSynced reports whether the first full list is complete: each pod in it was inspected,
// or its inspection has failed or is slow. HealthReport names the pods that fail or are slow.
// Once true it stays true. It never blocks.
func (g *GenericPLEG) HasSynced() bool {
	select {
	case <-g.loop.synced:
		return true
	default:
		return false
	}
}

// WaitForSync returns nil as soon as HasSynced is true. If ctx ends before that, the error
// wraps its cause and says what WaitForSync waited for, in the words of Healthy. It does not
// start the generator.
func (g *GenericPLEG) WaitForSync(ctx context.Context) error {
	if g.HasSynced() {
		return nil
	}
	select {
	case <-g.loop.synced:
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("pleg has not synced: %w: %w", g.healthCheck().unsynced(), context.Cause(ctx))
		if g.HasSynced() { // as ctx ended
			return nil
		}
		return err
	}
}

// Pods returns the pods as they were listed last, sorted by UID, inspected or not. It never
// waits for the runtime.
func (g *GenericPLEG) Pods() Pods { return g.loop.pods() }

// HealthReport returns the health, and the state that decides it. It has no side effects and
// never blocks.
func (g *GenericPLEG) HealthReport() HealthReport {
	h := g.healthCheck()
	r := g.report(h)
	r.Runtime = g.described()
	r.CallsInFlight = g.reportedCalls()
	if _, ok := g.runtime.(CallReporter); !ok {
		r.CallsInFlight = h.inFlight(methodGetPods, methodGetPod, methodGetPodStatus)
	}
	return r
}

// report returns what a report has besides what the runtime says.
func (g *GenericPLEG) report(h *healthCheck) HealthReport {
	r := h.report(g.events.status())
	r.ExitStream = g.exits.status()
	r.BlockedReaders = g.cache.BlockedReaders()
	backlogs := g.updates.Backlogs()
	r.Subscribers = len(backlogs)
	r.Backlog, r.NamedSubscribers = subscriberReports(backlogs)
	return r
}

// healthCheck returns the input of the health check. The runtime is asked for its calls
// without a lock held.
func (g *GenericPLEG) healthCheck() *healthCheck {
	state := g.loop.lastState()
	return &healthCheck{
		healthState: state, now: g.clock.Now(), threshold: g.threshold, period: g.period, started: g.started.Load(),
		inFlight: func(methods ...string) (list []RuntimeCall) {
			for _, info := range g.calls.InFlight(methods...) {
				list = append(list, runtimeCall(info))
			}
			return list
		},
		reported: g.reportedCalls,
	}
}

// gauges returns the present values of the metrics.
func (g *GenericPLEG) gauges() gauges {
	h := g.healthCheck()
	now := gauges{
		HealthReport: g.report(h), tally: h.tally, now: h.now,
		inspectionsInFlight: len(h.inFlight(methodGetPodStatus)),
	}
	if listing := h.inFlight(methodGetPods); len(listing) > 0 {
		now.relistRunning = max(0, h.now.Sub(listing[0].Since))
	}
	return now
}

// reportedCalls returns the calls that the runtime reports, if it is a CallReporter.
func (g *GenericPLEG) reportedCalls() (calls []RuntimeCall) {
	if reporter, ok := g.runtime.(CallReporter); ok {
		g.guarded("CallsInFlight", func() { calls = reporter.CallsInFlight() })
	}
	return calls
}

// described returns how the runtime describes itself, if it is a Describer.
func (g *GenericPLEG) described() (description string) {
	if d, ok := g.runtime.(Describer); ok {
		g.guarded("DescribeRuntime", func() { description = d.DescribeRuntime() })
	}
	return description
}

// guarded runs a method of the runtime that may panic.
func (g *GenericPLEG) guarded(name string, method func()) {
	defer func() {
		if p := recover(); p != nil {
			g.metrics.badData(g.logger.Info, badRuntimePanic, fmt.Sprintf("%s: %v", name, p))
		}
	}()
	method()
}

// runtimeCall converts a call to its form in a report.
func runtimeCall(info calls.Info) RuntimeCall {
	call := RuntimeCall{Method: info.Method, PodUID: info.PodUID, Since: info.Since}
	if info.Object != nil {
		call.Object = info.Object.String()
	}
	return call
}
