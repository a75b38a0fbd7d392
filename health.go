package pleg

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// HealthReport is everything that is known about how a generator fares, for
// people and for a health endpoint.
type HealthReport struct {
	// Healthy and Reason are what Healthy returns.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// Runtime is what the runtime says of itself.
	Runtime string `json:"runtime,omitempty"`
	// LastRelist is when the last full relist that succeeded began; zero if none
	// has.
	LastRelist time.Time `json:"lastRelist,omitzero"`
	// RelistError is the error of the last full relist if that failed.
	RelistError string `json:"relistError,omitempty"`
	// Pods counts the pods that are known.
	Pods int `json:"pods"`
	// CallsInFlight are the calls that the runtime has not answered, oldest
	// first: those that the runtime itself reports, or else the generator's.
	// An event stream is among them only until the runtime has accepted it.
	CallsInFlight []RuntimeCall `json:"callsInFlight,omitempty"`
	// Troubled are the pods whose inspection hangs or fails, by UID.
	Troubled []PodTrouble `json:"troubled,omitempty"`
	// Stream is the state of the event stream.
	Stream StreamReport `json:"stream"`
	// BlockedReaders counts the readers that wait on the cache; -1 if the cache
	// cannot tell.
	BlockedReaders int `json:"blockedReaders"`
	// Subscribers counts the subscriptions, Backlog the pods of which they have
	// news that did not fit into their channels.
	Subscribers int `json:"subscribers"`
	Backlog     int `json:"backlog"`
}

// PodTrouble is a pod whose inspection hangs or fails.
type PodTrouble struct {
	PodUID    types.UID `json:"podUID"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	// HangingSince is when the inspection began that the runtime has not
	// answered; zero if it answers.
	HangingSince time.Time `json:"hangingSince,omitzero"`
	// Failures counts the failures in a row, and Error is the last one.
	Failures int    `json:"failures,omitempty"`
	Error    string `json:"error,omitempty"`
}

// StreamState is the state of the runtime's event stream.
type StreamState string

const (
	// StreamOff is a generator that is stopped or told to poll only, or a
	// runtime that is no EventSource.
	StreamOff StreamState = "off"
	// StreamConnecting is a stream that was asked for and not yet accepted.
	StreamConnecting StreamState = "connecting"
	// StreamConnected is a stream that brings events.
	StreamConnected StreamState = "connected"
	// StreamBroken is a stream that ended; another is tried soon.
	StreamBroken StreamState = "broken"
	// StreamUnsupported is a runtime that has no events; it is asked again after
	// some minutes.
	StreamUnsupported StreamState = "unsupported"
)

// StreamReport is how the event stream fares.
type StreamReport struct {
	State StreamState `json:"state"`
	// Since is when the state was entered.
	Since time.Time `json:"since,omitzero"`
	// LastEvent is when the last event came.
	LastEvent time.Time `json:"lastEvent,omitzero"`
	// Error is why the last stream, or the last attempt at one, ended; it stays
	// while another is connected.
	Error string `json:"error,omitempty"`
	// NextTry is when the next connection is tried.
	NextTry time.Time `json:"nextTry,omitzero"`
}

// vitals is what the loop tells of itself. Its lock is held for moments only, so
// that asking for the health never waits for a runtime.
type vitals struct {
	mu sync.Mutex

	// Guarded by mu.

	lastList  time.Time // zero until a list has succeeded
	listErr   error     // nil if the last list succeeded
	listErrAt time.Time
	// lastInspection is when an inspection last succeeded; at first, when the
	// generator was made.
	lastInspection time.Time
	troubled       map[types.UID]PodTrouble
	stream         StreamReport
	pods           int
	tally          tally
}

func newVitals(now time.Time) *vitals {
	return &vitals{
		lastInspection: now,
		troubled:       make(map[types.UID]PodTrouble),
		stream:         StreamReport{State: StreamOff},
	}
}

// vitalSigns are those that the metrics show.
type vitalSigns struct {
	lastList      time.Time
	tally         tally
	hung, failing int
	connected     bool
}

func (v *vitals) signs() vitalSigns {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := vitalSigns{lastList: v.lastList, tally: v.tally, connected: v.stream.State == StreamConnected}
	for _, t := range v.troubled {
		if !t.HangingSince.IsZero() {
			s.hung++
		}
		if t.Failures > 0 {
			s.failing++
		}
	}
	return s
}

// listed notes a full list that succeeded.
func (v *vitals) listed(started time.Time, pods int, t tally, logger klog.Logger) {
	v.mu.Lock()
	recovered := v.listErr != nil
	v.lastList, v.listErr = started, nil
	v.pods, v.tally = pods, t
	v.mu.Unlock()
	if recovered {
		logger.Info("Relist succeeded again")
	}
}

// counted notes what there is after a listing of one pod.
func (v *vitals) counted(pods int, t tally) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pods, v.tally = pods, t
}

// listFailed notes a full list that failed. An error that goes on is logged once.
func (v *vitals) listFailed(err error, now time.Time, logger klog.Logger) {
	v.mu.Lock()
	first := v.listErr == nil || v.listErr.Error() != err.Error()
	v.listErr, v.listErrAt = err, now
	v.mu.Unlock()
	if first {
		logger.Error(err, "Cannot list pods; will try again every period")
	}
}

// trouble notes that the inspection of a pod hangs, or failed.
func (v *vitals) trouble(uid types.UID, in *inspection, pod *Pod, err error) {
	t := PodTrouble{
		PodUID: uid, Namespace: pod.Namespace, Name: pod.Name,
		HangingSince: in.unanswered, Failures: in.failures,
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	t.Error = v.troubled[uid].Error
	if err != nil {
		t.Error = err.Error()
	}
	v.troubled[uid] = t
}

// inspected notes an inspection that succeeded.
func (v *vitals) inspected(uid types.UID, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lastInspection = now
	delete(v.troubled, uid)
}

// answers notes that the inspection of a pod does not hang any more.
func (v *vitals) answers(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, troubled := v.troubled[uid]
	switch {
	case !troubled:
	case t.Failures == 0:
		delete(v.troubled, uid)
	default:
		t.HangingSince = time.Time{}
		v.troubled[uid] = t
	}
}

// recovered notes that a pod is no trouble any more.
func (v *vitals) recovered(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.troubled, uid)
}

func (v *vitals) streamConnecting(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stream.State, v.stream.Since, v.stream.NextTry = StreamConnecting, now, time.Time{}
}

func (v *vitals) streamConnected(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stream.State, v.stream.Since = StreamConnected, now
}

func (v *vitals) streamHeard(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stream.LastEvent = now
}

func (v *vitals) streamEnded(state StreamState, err error, now, nextTry time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stream.State, v.stream.Since, v.stream.NextTry = state, now, nextTry
	if err != nil {
		v.stream.Error = err.Error()
	}
}

// Healthy tells whether the generator does its work, and if not, why not. It is
// not healthy before the first successful relist; when the last one began longer
// ago than the threshold; and when the inspections of two pods or more have hung
// for longer than the threshold and none of any pod has succeeded in that time.
// One pod that hangs never makes a node unhealthy: while one does, a healthy pod
// is inspected now and then to see whether it is alone.
//
// The error names the call that hangs, the pod or container that it was made for,
// and for how long, or the last error. Healthy has no side effects and never
// blocks.
func (g *GenericPLEG) Healthy() (bool, error) {
	err := g.unhealthy(g.clock.Now())
	return err == nil, err
}

// unhealthy is the one rule of health. It lets go of the lock before it asks the
// runtime which calls it has in flight.
func (g *GenericPLEG) unhealthy(now time.Time) error {
	threshold := g.opts.relistThreshold
	v := g.vitals
	v.mu.Lock()
	lastList, listErr, listErrAt, lastInspection := v.lastList, v.listErr, v.listErrAt, v.lastInspection
	hanging := v.hangingLocked(now, threshold)
	v.mu.Unlock()

	switch {
	case lastList.IsZero():
		return fmt.Errorf("pleg has yet to be successful: %w", g.listCause(listErr, listErrAt, now))
	case now.Sub(lastList) > threshold:
		return fmt.Errorf("pleg was last seen active %v ago; threshold is %v: %w",
			now.Sub(lastList), threshold, g.listCause(listErr, listErrAt, now))
	case len(hanging) >= 2 && now.Sub(lastInspection) > threshold:
		return fmt.Errorf("pleg cannot inspect any pod: the inspections of %d pods have hung for longer than %v, and none of any pod has succeeded for %v: %s",
			len(hanging), threshold, now.Sub(lastInspection), g.inspectionCause(hanging[0], now))
	default:
		return nil
	}
}

// hangingLocked returns the pods whose inspection has hung for longer than the
// threshold, the oldest first.
func (v *vitals) hangingLocked(now time.Time, threshold time.Duration) []PodTrouble {
	var hanging []PodTrouble
	for _, t := range v.troubled {
		if !t.HangingSince.IsZero() && now.Sub(t.HangingSince) > threshold {
			hanging = append(hanging, t)
		}
	}
	slices.SortFunc(hanging, func(a, b PodTrouble) int {
		return cmp.Or(a.HangingSince.Compare(b.HangingSince), cmp.Compare(a.PodUID, b.PodUID))
	})
	return hanging
}

// errNoRelist is the cause when nothing is being tried and nothing has failed.
var errNoRelist = errors.New("no relist is under way")

// listCause says why there is no new list: the call in flight, and the last
// error.
func (g *GenericPLEG) listCause(failed error, failedAt, now time.Time) error {
	if failed != nil {
		failed = fmt.Errorf("the last list failed %v ago: %w", now.Sub(failedAt), failed)
	}
	listing := g.calls.runtimeCalls(callGetPods)
	switch {
	case len(listing) > 0:
		running := g.listInFlight(listing[0])
		inFlight := fmt.Errorf("%s has been running for %v", describeCall(running), now.Sub(running.Since)) //nolint:err113 // it is the cause
		return joinCauses(inFlight, failed)
	case failed != nil:
		return failed
	default:
		return errNoRelist
	}
}

func joinCauses(first, second error) error {
	if second == nil {
		return first
	}
	return fmt.Errorf("%w; %w", first, second)
}

// listInFlight returns the runtime's own call that a list is waiting for, if it
// reports one.
func (g *GenericPLEG) listInFlight(listing RuntimeCall) RuntimeCall {
	for _, c := range g.reportedCalls() {
		if c.PodUID == "" && c.Object == "" {
			return c
		}
	}
	return listing
}

// inspectionCause names the call for a pod that hangs.
func (g *GenericPLEG) inspectionCause(t PodTrouble, now time.Time) string {
	pod := podName(&Pod{Namespace: t.Namespace, Name: t.Name, ID: t.PodUID})
	what := string(callGetPodStatus) + " of " + pod
	for _, c := range g.reportedCalls() {
		if c.PodUID == t.PodUID {
			what = c.Method + " of " + c.Object + " of " + pod
			break
		}
	}
	what = fmt.Sprintf("%s has been unanswered for %v", what, now.Sub(t.HangingSince))
	if t.Error != "" {
		what += "; the last error: " + t.Error
	}
	return what
}

// reportedCalls returns the calls that the runtime reports, if it does.
func (g *GenericPLEG) reportedCalls() (calls []RuntimeCall) {
	reporter, ok := g.runtime.(CallReporter)
	if !ok {
		return nil
	}
	g.guarded("CallsInFlight", func() { calls = reporter.CallsInFlight() })
	return calls
}

// described returns what the runtime says of itself, if it does.
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
			g.metrics.badData(badRuntimePanic, fmt.Sprintf("%s: %v", name, p))
		}
	}()
	method()
}

func describeCall(c RuntimeCall) string {
	if c.Object == "" {
		return c.Method
	}
	return c.Method + " of " + c.Object
}

// blockedReaders counts the readers that wait on the cache; -1 if the cache cannot
// tell.
func (g *GenericPLEG) blockedReaders() int {
	if counter, ok := g.cache.(interface{ BlockedReaders() int }); ok {
		return counter.BlockedReaders()
	}
	return -1
}

// HealthReport returns the health and what it is made of. It has no side effects
// and never blocks.
func (g *GenericPLEG) HealthReport() HealthReport {
	now := g.clock.Now()
	r := HealthReport{Healthy: true, BlockedReaders: g.blockedReaders()}
	if err := g.unhealthy(now); err != nil {
		r.Healthy, r.Reason = false, err.Error()
	}
	r.Runtime = g.described()
	r.CallsInFlight = g.reportedCalls()
	if _, ok := g.runtime.(CallReporter); !ok {
		r.CallsInFlight = g.calls.runtimeCalls(callGetPods, callGetPod, callGetPodStatus)
	}
	r.Subscribers, r.Backlog = g.announcer.backlog()

	v := g.vitals
	v.mu.Lock()
	defer v.mu.Unlock()
	r.LastRelist, r.Pods, r.Stream = v.lastList, v.pods, v.stream
	if v.listErr != nil {
		r.RelistError = v.listErr.Error()
	}
	for _, t := range v.troubled {
		r.Troubled = append(r.Troubled, t)
	}
	slices.SortFunc(r.Troubled, func(a, b PodTrouble) int { return cmp.Compare(a.PodUID, b.PodUID) })
	return r
}
