package pleg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/internal/core/calls"
)

// HealthReport is the state of a generator, for logs and for a health endpoint.
type HealthReport struct {
	// Healthy is the result of the method Healthy, and Reason is the text of its error.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// Runtime is the runtime's description of itself; empty if the runtime is no Describer.
	Runtime string `json:"runtime,omitempty"`
	// LastRelist is when the last successful full relist began; zero for none.
	LastRelist time.Time `json:"lastRelist,omitzero"`
	// RelistError is the error of the last full relist; empty if it succeeded. RelistFailingSince is
	// when the first of these consecutive failed lists began.
	RelistError        string    `json:"relistError,omitempty"`
	RelistFailingSince time.Time `json:"relistFailingSince,omitzero"`
	// LastAnswer is when the runtime last answered a call; zero for never. Without a CallReporter, it is the
	// beginning of the last successful full list or the end of the last successful inspection, whichever is later.
	LastAnswer time.Time `json:"lastAnswer,omitzero"`
	// Pods is the number of pods in the lists.
	Pods int `json:"pods"`
	// CallsInFlight are the unanswered calls, oldest first. If the runtime is a CallReporter, it reports
	// them, including streams not yet accepted. Otherwise they are the generator's lists and inspections.
	CallsInFlight []RuntimeCall `json:"callsInFlight,omitempty"`
	// FailingPods are the pods with a stuck or failed inspection, sorted by UID.
	FailingPods []FailingPod `json:"failingPods,omitempty"`
	Stream      StreamReport `json:"stream"`
	// ExitStream is the stream of exits; see ExitSource.
	ExitStream StreamReport `json:"exitStream"`
	// StuckRelist is set while full relists are stuck; otherwise nil.
	StuckRelist *StuckRelist `json:"stuckRelist,omitempty"`
	// UnconfirmedExits are the containers that the runtime still lists as running more than a relist
	// period after their exit event, sorted by pod.
	UnconfirmedExits []UnconfirmedExit `json:"unconfirmedExits,omitempty"`
	// BlockedReaders is the number of readers that wait for the cache.
	BlockedReaders int `json:"blockedReaders"`
	// Subscribers is the number of subscriptions.
	Subscribers int `json:"subscribers"`
	// Backlog is how many pods have updates that do not fit into a subscriber's channel, summed over
	// all subscribers; see WithCapacity.
	Backlog int `json:"backlog"`
}

// StuckRelist is a stuck full relist. It has run for more than a period, and for more than ten
// seconds or more than twice as long as the last successful relist. After a timeout, full relists
// stay stuck until the runtime answers one. While full relists are stuck, each known pod is
// inspected, at most every other period.
type StuckRelist struct {
	// Since is when the first stuck full relist began.
	Since time.Time `json:"since"`
	// Suspects are the pods with inspections stuck since LastRelist or later, sorted by UID. Most likely, a
	// container of one of them blocks the list. There are none if Frozen is true, or before an answer after Since.
	Suspects []FailingPod `json:"suspects,omitempty"`
	// Frozen is true if LastAnswer is more than ten seconds ago: the runtime itself is stuck.
	Frozen bool `json:"frozen,omitempty"`
	// Answered is the number of pods with a successful inspection that began after Since.
	Answered int `json:"answered"`
}

// UnconfirmedExit is a container whose exit was reported only by an exit event.
type UnconfirmedExit struct {
	PodUID      types.UID `json:"podUID"`
	Namespace   string    `json:"namespace,omitempty"`
	Name        string    `json:"name,omitempty"`
	Container   string    `json:"container,omitempty"`
	ContainerID string    `json:"containerID"`
	ExitCode    int       `json:"exitCode"`
	// Since is when the exit event arrived.
	Since time.Time `json:"since"`
}

// FailingPod is a pod with a failed or stuck inspection. A stuck inspection has been unanswered for
// longer than a period.
type FailingPod struct {
	PodUID    types.UID `json:"podUID"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	// StuckSince is when the oldest stuck inspection began; zero for none. Since then, the runtime has
	// answered no inspection of the pod.
	StuckSince time.Time `json:"stuckSince,omitzero"`
	// Failures is how many inspections failed in a row.
	Failures int `json:"failures,omitempty"`
	// Error is the error of the last failed inspection. Call is the call that failed in the last one; see CallError.
	Error string       `json:"error,omitempty"`
	Call  *RuntimeCall `json:"call,omitempty"`
}

func (p FailingPod) isStuck() bool { return !p.StuckSince.IsZero() }

// health is a HealthReport with additional facts for its Reason and for the metrics.
type health struct {
	HealthReport
	now            time.Time
	threshold      time.Duration
	started        bool
	listErr        error // of the last full list; nil if it succeeded
	listErrAt      time.Time
	lastInspection time.Time // when the last successful inspection ended
	runningPods    int       // pods with a running sandbox
	containers     map[State]int
	calls          []RuntimeCall // the generator's lists and inspections, oldest first
	reported       []RuntimeCall // the runtime's CallsInFlight, oldest first
}

// health returns the parts of the health that the reconciler knows.
func (r *reconciler) health(now time.Time) *health {
	h := &health{
		HealthReport: HealthReport{LastRelist: r.fullSucceeded, LastAnswer: later(r.fullSucceeded, r.lastInspection)},
		now:          now, threshold: r.cfg.Threshold, listErr: r.listErr, listErrAt: r.listErrAt,
		lastInspection: r.lastInspection, containers: make(map[State]int),
	}
	if h.listErr != nil {
		h.RelistError, h.RelistFailingSince = h.listErr.Error(), r.listFailingSince
	}
	if since := r.sched.FullListsStuckSince; !since.IsZero() {
		h.StuckRelist = &StuckRelist{Since: since}
	}
	for _, rec := range r.records.present() {
		h.add(rec, r.cfg.Period, r.cache)
	}
	return h
}

// add counts a pod and its containers, and adds the pod's problems to the report.
func (h *health) add(rec *podRecord, period time.Duration, cache *PodCache) {
	pod := rec.pod
	h.Pods++
	if slices.ContainsFunc(pod.Sandboxes, func(s *Container) bool { return s.State == ContainerStateRunning }) {
		h.runningPods++
	}
	listed := finder(rec.listed.containers())
	for _, c := range pod.Containers {
		h.containers[c.State]++
		s, e := rec.statuses[c.ID.ID], rec.ends[c.ID.ID]
		if s != nil && s.Unconfirmed && e != nil && h.since(e.since) > period && !isExited(listed(c.ID.ID)) {
			h.UnconfirmedExits = append(h.UnconfirmedExits, UnconfirmedExit{PodUID: pod.ID, Namespace: pod.Namespace,
				Name: pod.Name, Container: s.Name, ContainerID: s.ID.ID, ExitCode: s.ExitCode, Since: e.since})
		}
	}
	if h.StuckRelist != nil && rec.lastInspected.After(h.StuckRelist.Since) {
		h.StuckRelist.Answered++
	}
	if rec.failures == 0 && rec.StuckSince.IsZero() {
		return
	}
	p := FailingPod{PodUID: pod.ID, Namespace: pod.Namespace, Name: pod.Name,
		StuckSince: rec.StuckSince, Failures: rec.failures, Call: rec.failedCall}
	if _, err := cache.Get(rec.UID); err != nil {
		p.Error = err.Error()
	}
	h.FailingPods = append(h.FailingPods, p)
	if h.StuckRelist != nil && p.isStuck() && !p.StuckSince.Before(h.LastRelist) {
		h.StuckRelist.Suspects = append(h.StuckRelist.Suspects, p)
	}
}

func (h *health) since(t time.Time) time.Duration { return h.now.Sub(t) }

// ago returns the age of a time for messages: rounded to 100 ms, and never negative.
func (h *health) ago(t time.Time) time.Duration { return max(0, h.since(t)).Round(time.Second / 10) }

// unhealthy returns why the generator is unhealthy; nil if it is healthy. Every report of the health uses it.
func (h *health) unhealthy() error {
	if h.LastRelist.IsZero() {
		return fmt.Errorf("pleg has yet to be successful: %w", h.listCause())
	}
	if h.since(h.LastRelist) > h.threshold {
		return fmt.Errorf("pleg was last seen active %v ago; threshold is %v: %w", // the kubelet's text, not rounded
			h.since(h.LastRelist), h.threshold, h.listCause())
	}
	stuck := slices.DeleteFunc(slices.Clone(h.FailingPods), func(p FailingPod) bool {
		return !p.isStuck() || h.since(p.StuckSince) <= h.threshold
	})
	if len(stuck) < 2 || h.since(h.lastInspection) <= h.threshold {
		return nil
	}
	oldest := slices.MinFunc(stuck, func(a, b FailingPod) int { return a.StuckSince.Compare(b.StuckSince) })
	return fmt.Errorf("pleg cannot inspect any pod: the inspections of %d pods have been unanswered for longer than %v, "+
		"and no inspection has succeeded for %v: %s",
		len(stuck), h.threshold, h.ago(h.lastInspection), h.inspectionCause(oldest))
}

// listCause returns why there is no newer list: the call in flight, the last error, or both.
func (h *health) listCause() error {
	running := ""
	if lists := h.callsOf(methodGetPods); len(lists) > 0 {
		call := lists[0]
		if i := slices.IndexFunc(h.reported, func(c RuntimeCall) bool { return c.PodUID == "" && c.Object == "" }); i >= 0 {
			call = h.reported[i] // the runtime's call that the list waits for
		}
		running = h.running(call) + h.whileListIsStuck()
	}
	switch {
	case h.listErr != nil:
		if running != "" {
			running += "; "
		}
		return fmt.Errorf("%sthe last list failed %v ago: %w", running, h.ago(h.listErrAt), h.listErr)
	case running != "":
		return errors.New(running)
	case !h.started:
		return errors.New("the generator is not running")
	default:
		return errors.New("no relist is under way")
	}
}

// The method whileListIsStuck returns other stuck calls, and the number of pods inspected since.
func (h *health) whileListIsStuck() string {
	stuck := h.StuckRelist
	switch i := slices.IndexFunc(h.reported, func(c RuntimeCall) bool { return c.ObjectID != "" }); {
	case stuck == nil:
		return ""
	case stuck.Frozen:
		return "; the runtime answers no other call"
	case len(stuck.Suspects) > 0:
		return fmt.Sprintf("; meanwhile, %s; stuck pods: %d, inspected since: %d",
			h.inspectionCause(stuck.Suspects[0]), len(stuck.Suspects), stuck.Answered)
	case i >= 0: // the call may be for a pod that no list has shown
		return "; meanwhile, " + h.running(h.reported[i])
	default:
		return fmt.Sprintf("; pods inspected since: %d", stuck.Answered)
	}
}

// unsynced returns why the generator has not synced.
func (h *health) unsynced() error {
	if inspecting := h.callsOf(methodGetPodStatus); len(inspecting) > 0 {
		return fmt.Errorf("%s, the oldest of %d inspections", h.running(inspecting[0]), len(inspecting))
	}
	return h.listCause()
}

// callsOf returns the generator's unanswered calls of a method, oldest first.
func (h *health) callsOf(method string) []RuntimeCall {
	return slices.DeleteFunc(slices.Clone(h.calls), func(c RuntimeCall) bool { return c.Method != method })
}

func (h *health) running(c RuntimeCall) string {
	return fmt.Sprintf("%s has been running for %v", describeCall(c), h.ago(c.Since))
}

// inspectionCause describes the stuck call of a pod: its oldest call that names a container, if there is one.
func (h *health) inspectionCause(p FailingPod) string {
	call, named := methodGetPodStatus, false
	for _, c := range slices.Backward(h.reported) {
		if c.PodUID == p.PodUID && (!named || c.ObjectID != "") {
			call, named = describeCall(c), c.ObjectID != ""
		}
	}
	text := fmt.Sprintf("%s of %s has been unanswered for %v",
		call, podName(&Pod{Namespace: p.Namespace, Name: p.Name, ID: p.PodUID}), h.ago(p.StuckSince))
	if p.Error != "" {
		text += "; the last error: " + p.Error
	}
	return text
}

func describeCall(c RuntimeCall) string { return strings.TrimSuffix(c.Method+" of "+c.Object, " of ") }

// Healthy reports whether the generator works, and if not, why. It reports false in three cases:
//
//   - No relist has succeeded yet.
//   - The last successful relist began longer ago than the threshold.
//   - Inspections of two or more pods are older than the threshold, and so is the last success.
//
// One stuck pod never makes a node unhealthy. While a pod is stuck, healthy pods are inspected as
// canaries, six times within the threshold.
//
// The error names the stuck call, its pod or container, and its age, or the last error, or both. If
// a full list is stuck, the error also names other stuck calls and counts the pods inspected since.
// Healthy has no side effects and never blocks.
func (g *GenericPLEG) Healthy() (bool, error) {
	err := g.diagnosis().unhealthy()
	return err == nil, err
}

// HasSynced reports whether the first full list is complete: each of its pods was inspected, or its
// inspection failed or is slow. HealthReport names the failing pods. HasSynced stays true and never blocks.
//
// A pod is in no list while its first sandbox is still being made; see PodCache.Lookup.
func (g *GenericPLEG) HasSynced() bool { return isClosed(g.synced) }

// WaitForSync returns nil as soon as HasSynced is true. If ctx ends first, the error wraps the
// cause and names the calls that WaitForSync waited for. It does not start the generator.
func (g *GenericPLEG) WaitForSync(ctx context.Context) error {
	select {
	case <-g.synced:
		return nil
	case <-ctx.Done():
	}
	missing := g.diagnosis().unsynced()
	if g.HasSynced() { // the generator may have synced just after ctx ended
		return nil
	}
	return fmt.Errorf("pleg has not synced: %w: %w", missing, context.Cause(ctx))
}

// Pods returns the listed pods, sorted by UID, inspected or not, with the exits of exit events. It never blocks.
func (g *GenericPLEG) Pods() (pods []*Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, rec := range g.reconciler.records.present() {
		pods = append(pods, rec.pod)
	}
	return pods
}

// Pod returns the listed pod with a UID, inspected or not, with exits of exit events; nil for none. It never blocks.
func (g *GenericPLEG) Pod(uid types.UID) (pod *Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rec := g.reconciler.records.byUID[uid]; rec != nil {
		pod = rec.pod
	}
	return pod
}

// HealthReport returns the health, without side effects or blocking. After Stop, it still contains the stuck pods.
func (g *GenericPLEG) HealthReport() HealthReport {
	h := g.diagnosis()
	if err := h.unhealthy(); err != nil {
		h.Reason = err.Error()
	}
	h.Healthy = h.Reason == ""
	if d, ok := g.runtime.(Describer); ok {
		g.guarded("DescribeRuntime", func() { h.Runtime = d.DescribeRuntime() })
	}
	return h.HealthReport
}

// diagnosis returns the health, including the calls that the runtime reports.
func (g *GenericPLEG) diagnosis() *health {
	h := g.health()
	h.CallsInFlight = h.calls
	if reporter, ok := g.runtime.(CallReporter); ok {
		g.guarded("CallsInFlight", func() { h.reported, h.LastAnswer = reporter.CallsInFlight() })
		h.CallsInFlight = h.reported
	}
	if list := h.StuckRelist; list != nil && (h.LastAnswer.Before(list.Since) || h.since(h.LastAnswer) > 10*time.Second) {
		list.Frozen, list.Suspects = h.since(h.LastAnswer) > 10*time.Second, nil
	}
	return h
}

// health returns the health without asking the runtime.
func (g *GenericPLEG) health() *health {
	g.mu.Lock()
	h := g.reconciler.health(g.clock.Now())
	g.mu.Unlock()
	h.started = g.running.Load() != nil
	for _, info := range g.calls.InFlight(methods[:]...) {
		h.calls = append(h.calls, runtimeCall(info))
	}
	h.Stream, h.ExitStream = g.events.status(), g.exits.status()
	h.BlockedReaders = g.cache.BlockedReaders()
	h.Subscribers, h.Backlog = g.updates.Backlog()
	return h
}

// guarded calls a method of the runtime that may panic.
func (g *GenericPLEG) guarded(name string, method func()) {
	defer func() {
		if p := recover(); p != nil {
			g.metrics.badData(g.logger.Info, badPanic, name+": "+fmt.Sprint(p))
		}
	}()
	method()
}

func runtimeCall(info calls.Info) RuntimeCall {
	return RuntimeCall{Method: info.Method, PodUID: info.PodUID, Object: info.Object, Since: info.Since}
}
