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
	found    *report
	// away is when the runtime stopped answering, or when the last successful list began; zero if
	// neither applies.
	away time.Time
}

const (
	// slowCall is how long a list may be unanswered before it is reported as stuck.
	slowCall = 10 * time.Second
)

// newCondition puts a report into words, as of now. It looks up the report's calls and failing pods
// in pods.
func newCondition(r pleg.HealthReport, pods []*pleg.Pod, now time.Time) condition {
	r = clipReport(r)
	c := condition{report: r, notes: troubles(&r, now)}
	switch {
	case !r.Healthy && answersNothing(&r, now):
		c.level, c.sentence = levelError, "Not healthy: "+c.notes[0]
		c.notes = append([]string{"reason: " + printable.Text(rounded(r.Reason)) + "."}, c.notes[1:]...)
	case !r.Healthy:
		c.level, c.sentence = levelError, "Not healthy: "+printable.Text(rounded(r.Reason))+"."
	case len(c.notes) > 0:
		c.level, c.sentence, c.notes = levelWarning, "Degraded: "+c.notes[0], c.notes[1:]
	default:
		c.level = levelOK
		c.sentence = fmt.Sprintf("Healthy: %s, the last relist began %s ago, the event stream is %s.",
			plural(r.Pods, "pod"), roughly(now.Sub(r.LastRelist)), r.Stream.State)
	}
	if answersNothing(&r, now) {
		c.away = r.StuckRelist.Since
	} else if r.RelistError != "" && now.Sub(r.LastRelist) > slowCall {
		c.away = r.LastRelist
	}
	c.encoded, c.found = encoded(clipLists(r)), newReport(&c, pods)
	return c
}

// answersNothing reports whether the runtime answers no full list and no inspection.
func answersNothing(r *pleg.HealthReport, now time.Time) bool {
	return r.StuckRelist != nil && r.StuckRelist.Answered == 0 && now.Sub(r.StuckRelist.Since) > slowCall
}

// troubles returns what is wrong, one sentence each, the worst first. If the runtime answers
// nothing, one sentence covers all calls.
func troubles(r *pleg.HealthReport, now time.Time) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if answersNothing(r, now) {
		since := r.StuckRelist.Since
		say("nothing has been answered since %s: restart the runtime.", forLong(since, since, now))
		return append(all, exitTroubles(r, now)...)
	}
	names := make(map[types.UID]string, len(r.FailingPods))
	var stuck, failed []pleg.FailingPod
	for _, f := range r.FailingPods {
		names[f.PodUID] = printable.Text(nameOf(f.Namespace, f.Name, clip(string(f.PodUID))))
		if f.StuckSince.IsZero() {
			failed = append(failed, f)
		} else {
			stuck = append(stuck, f)
		}
	}
	slices.SortStableFunc(stuck, func(a, b pleg.FailingPod) int { return a.StuckSince.Compare(b.StuckSince) })
	slices.SortStableFunc(failed, func(a, b pleg.FailingPod) int { return cmp.Compare(b.Failures, a.Failures) })

	listIsStuck := r.StuckRelist != nil && now.Sub(r.StuckRelist.Since) > slowCall
	if call, since, is := openCall(r); listIsStuck || is && now.Sub(since) > slowCall {
		first, beside := since, ""
		if listIsStuck {
			first, beside = r.StuckRelist.Since, besideList(r, stuck, names)
		}
		say("%s has not been answered since %s%s.", call, forLong(first, since, now), beside)
	}
	if r.RelistError != "" {
		switch text := printable.Text(rounded(r.RelistError)); {
		case r.LastRelist.IsZero():
			say("no full list has succeeded: %s.", text)
		case !listIsStuck:
			say("no full list has succeeded since %s: %s.", forLong(r.LastRelist, r.LastRelist, now), text)
		default:
			say("the last list failed: %s.", text)
		}
	}
	if len(stuck) > 0 && !listIsStuck {
		first, unaffected := stuck[0], ""
		if r.StuckRelist == nil {
			unaffected = "; other pods are not affected"
		}
		text, attempt := inspectionText(r, first.PodUID, names[first.PodUID])
		say("%s has not been answered since %s%s%s.", text, forLong(first.StuckSince, attempt, now),
			others(len(stuck)-1, "pod is stuck", "pods are stuck"), unaffected)
	}
	if len(failed) > 0 {
		first := failed[0]
		say("the inspection of pod %s has failed %s%s: %s.", names[first.PodUID], plural(first.Failures, "time"),
			others(len(failed)-1, "pod fails", "pods fail"), printable.Text(rounded(first.Error)))
	}
	all = append(all, exitTroubles(r, now)...)
	if r.Stream.State == pleg.StreamBroken {
		say("the event stream is broken since %s: %s; changes are found by the next relist.",
			clockTime(r.Stream.Since), printable.Text(rounded(r.Stream.Error)))
	}
	if r.ExitStream.State == pleg.StreamBroken {
		say("the exit stream is broken since %s: %s; exits are found as other changes are.",
			clockTime(r.ExitStream.Since), printable.Text(rounded(r.ExitStream.Error)))
	}
	return all
}

// exitTroubles returns a sentence about the unconfirmed exits, if there are any.
func exitTroubles(r *pleg.HealthReport, now time.Time) (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if exits := r.UnconfirmedExits; len(exits) > 0 {
		oldest := slices.MinFunc(exits, func(a, b pleg.UnconfirmedExit) int { return a.Since.Compare(b.Since) })
		say("container %s of pod %s exited %s ago (code %d)%s; the runtime says running.",
			printable.Text(cmp.Or(oldest.Container, short(oldest.ContainerID))),
			printable.Text(nameOf(oldest.Namespace, oldest.Name, clip(string(oldest.PodUID)))),
			roughly(now.Sub(oldest.Since)), oldest.ExitCode, others(len(exits)-1, "has exited", "have exited"))
	}
	return all
}

// forLong says since when something fails, and for how long. For a later attempt it adds how long
// that attempt has run.
func forLong(since, attempt, now time.Time) string {
	text := clockTime(since) + " (for " + roughly(now.Sub(since))
	if attempt.Sub(since) >= time.Second {
		text += ", this attempt for " + roughly(now.Sub(attempt))
	}
	return text + ")"
}

// openCall returns the oldest call without a pod and object, and when it was made. If there is none
// while a full relist is stuck, openCall returns the relist.
func openCall(r *pleg.HealthReport) (text string, since time.Time, is bool) {
	for _, c := range r.CallsInFlight {
		if c.PodUID == "" && c.Object == "" {
			return callText(c), c.Since, true
		}
	}
	if r.StuckRelist == nil {
		return "", time.Time{}, false
	}
	return "the relist", r.StuckRelist.Since, true
}

// besideList describes the pods while a full list is stuck: the first with a stuck inspection, and
// how many others have been inspected. Deaths in those are seen.
func besideList(r *pleg.HealthReport, stuck []pleg.FailingPod, names map[types.UID]string) (text string) {
	noun := "pod"
	if len(stuck) > 0 {
		uid := stuck[0].PodUID
		first, _ := inspectionText(r, uid, names[uid])
		text = fmt.Sprintf("; %s is not answered either%s", first, others(len(stuck)-1, "pod is stuck", "pods are stuck"))
		noun = "other pod"
	}
	return text + fmt.Sprintf("; %s been inspected since; until the list is answered, what is created or removed may not "+
		"be seen", have(r.StuckRelist.Answered, noun))
}

// inspectionText names a pod and the call that its inspection waits for. It returns when that call
// was made; zero if no call is known.
func inspectionText(r *pleg.HealthReport, uid types.UID, pod string) (text string, since time.Time) {
	text = "the inspection"
	for _, c := range r.CallsInFlight {
		if c.PodUID == uid {
			text, since = callText(c), c.Since
			break
		}
	}
	if strings.Contains(text, " of pod "+pod) {
		return text, since // the object of GetPodStatus is the pod itself
	}
	return text + " for pod " + pod, since
}

func callText(c pleg.RuntimeCall) string {
	if c.Object == "" {
		return printable.Text(c.Method)
	}
	return printable.Text(c.Method + " of " + c.Object)
}
