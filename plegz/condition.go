package plegz

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/printable"
)

// level is how bad the condition is.
type level string

const (
	levelOK      level = "ok"      // nothing is wrong
	levelWarning level = "warning" // something is wrong, and the generator is healthy
	levelError   level = "error"   // the generator is not healthy
)

// condition is the health in words.
type condition struct {
	level    level
	sentence string
	notes    []string
	report   pleg.HealthReport
	encoded  []byte // the report as JSON
}

const (
	// slowCall is how long a list may be unanswered before it is said to hang.
	slowCall = 10 * time.Second
	// farBehind is for how long a subscriber may be behind before that is said.
	farBehind = 10 * time.Second
)

// newCondition returns the health in words, of a report that was made at a time.
func newCondition(r pleg.HealthReport, now time.Time) condition {
	r = clipReport(r)
	c := condition{report: r, encoded: encoded(clipLists(r)), notes: troubles(&r, now)}
	switch {
	case !r.Healthy:
		c.level, c.sentence = levelError, "Not healthy: "+printable.Text(r.Reason)+"."
	case len(c.notes) > 0:
		c.level, c.sentence, c.notes = levelWarning, "Degraded: "+c.notes[0], c.notes[1:]
	default:
		c.level = levelOK
		c.sentence = fmt.Sprintf("Healthy: %s, the last relist began %s ago, the event stream is %s.",
			plural(r.Pods, "pod"), roughly(now.Sub(r.LastRelist)), r.Stream.State)
	}
	return c
}

// clipReport returns a report whose texts are short enough to be shown.
func clipReport(r pleg.HealthReport) pleg.HealthReport {
	r.Reason, r.RelistError, r.Runtime = clip(r.Reason), clip(r.RelistError), clip(r.Runtime)
	r.Stream.Error = clip(r.Stream.Error)
	r.FailingPods = slices.Clone(r.FailingPods)
	for i := range r.FailingPods {
		f := &r.FailingPods[i]
		f.Namespace, f.Name, f.Error = clip(f.Namespace), clip(f.Name), clip(f.Error)
	}
	r.CallsInFlight = slices.Clone(r.CallsInFlight)
	for i := range r.CallsInFlight {
		r.CallsInFlight[i].Object = clip(r.CallsInFlight[i].Object)
	}
	return r
}

// clipLists returns a report whose lists are short enough to be sent every second. The pods
// say themselves whether they hang or fail.
func clipLists(r pleg.HealthReport) pleg.HealthReport {
	r.FailingPods = slices.Clone(r.FailingPods[:min(len(r.FailingPods), maxList)])
	for i := range r.FailingPods {
		r.FailingPods[i].PodUID = types.UID(clip(string(r.FailingPods[i].PodUID)))
	}
	r.CallsInFlight = slices.Clone(r.CallsInFlight[:min(len(r.CallsInFlight), maxList)])
	for i := range r.CallsInFlight {
		r.CallsInFlight[i].PodUID = types.UID(clip(string(r.CallsInFlight[i].PodUID)))
	}
	r.NamedSubscribers = r.NamedSubscribers[:min(len(r.NamedSubscribers), maxList)]
	return r
}

// troubles returns what is wrong, the worst first, a sentence each.
func troubles(r *pleg.HealthReport, now time.Time) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	names := make(map[types.UID]string, len(r.FailingPods))
	var hung, failed []pleg.FailingPod
	for _, f := range r.FailingPods {
		names[f.PodUID] = printable.Text(nameOf(f.Namespace, f.Name, clip(string(f.PodUID))))
		if f.HangingSince.IsZero() {
			failed = append(failed, f)
		} else {
			hung = append(hung, f)
		}
	}
	if c, is := hungList(r, now); is {
		say("%s has not been answered since %s (for %s); until it is, changes are not seen.",
			callText(c), clockTime(c.Since), roughly(now.Sub(c.Since)))
	}
	if r.RelistError != "" {
		say("the last relist failed: %s.", printable.Text(r.RelistError))
	}
	slices.SortStableFunc(hung, func(a, b pleg.FailingPod) int { return a.HangingSince.Compare(b.HangingSince) })
	if len(hung) > 0 {
		first := hung[0]
		say("%s has not been answered since %s (for %s)%s; other pods are not affected.",
			inspectionText(r, first.PodUID, names[first.PodUID]), clockTime(first.HangingSince),
			roughly(now.Sub(first.HangingSince)), others(len(hung)-1, "hangs", "hang"))
	}
	slices.SortStableFunc(failed, func(a, b pleg.FailingPod) int { return cmp.Compare(b.Failures, a.Failures) })
	if len(failed) > 0 {
		first := failed[0]
		say("the inspection of pod %s has failed %s%s: %s.", names[first.PodUID], plural(first.Failures, "time"),
			others(len(failed)-1, "fails", "fail"), printable.Text(first.Error))
	}
	if r.Stream.State == pleg.StreamBroken {
		say("the event stream is broken since %s: %s; changes are found by the next relist.",
			clockTime(r.Stream.Since), printable.Text(r.Stream.Error))
	}
	if r.Stream.State == pleg.StreamSilent {
		say("the event stream is connected since %s and silent, although pods change; changes are found by the next relist.",
			clockTime(r.Stream.Since))
	}
	for _, s := range r.NamedSubscribers {
		if !s.BehindSince.IsZero() && now.Sub(s.BehindSince) > farBehind {
			say("subscriber %s is %s behind since %s (for %s).", printable.Text(s.Name), plural(s.Backlog, "pod"),
				clockTime(s.BehindSince), roughly(now.Sub(s.BehindSince)))
		}
	}
	return all
}

// hungList returns the oldest call for no pod, if it has been unanswered for long.
func hungList(r *pleg.HealthReport, now time.Time) (pleg.RuntimeCall, bool) {
	for _, c := range r.CallsInFlight {
		if c.PodUID == "" && c.Object == "" && now.Sub(c.Since) > slowCall {
			return c, true
		}
	}
	return pleg.RuntimeCall{}, false
}

// inspectionText names the call that a pod's inspection waits for, and the pod.
func inspectionText(r *pleg.HealthReport, uid types.UID, pod string) string {
	text := "the inspection"
	for _, c := range r.CallsInFlight {
		if c.PodUID == uid {
			text = callText(c)
			break
		}
	}
	if strings.Contains(text, " of pod "+pod) {
		return text // GetPodStatus is of nothing else
	}
	return text + " for pod " + pod
}

func callText(c pleg.RuntimeCall) string {
	if c.Object == "" {
		return printable.Text(c.Method)
	}
	return printable.Text(c.Method + " of " + c.Object)
}
