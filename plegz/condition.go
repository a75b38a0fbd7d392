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
	slices.SortStableFunc(hung, func(a, b pleg.FailingPod) int { return a.HangingSince.Compare(b.HangingSince) })
	slices.SortStableFunc(failed, func(a, b pleg.FailingPod) int { return cmp.Compare(b.Failures, a.Failures) })

	listHangs := r.HungRelist != nil && now.Sub(r.HungRelist.Since) > slowCall
	if call, since, is := openCall(r); listHangs || is && now.Sub(since) > slowCall {
		beside := ""
		if listHangs {
			beside = besideList(r, hung, names)
		}
		say("%s has not been answered since %s (for %s)%s.", call, clockTime(since), roughly(now.Sub(since)), beside)
	}
	if r.RelistError != "" {
		say("the last relist failed: %s.", printable.Text(r.RelistError))
	}
	if len(hung) > 0 && !listHangs {
		first, unaffected := hung[0], ""
		if r.HungRelist == nil {
			unaffected = "; other pods are not affected"
		}
		say("%s has not been answered since %s (for %s)%s%s.",
			inspectionText(r, first.PodUID, names[first.PodUID]), clockTime(first.HangingSince),
			roughly(now.Sub(first.HangingSince)), others(len(hung)-1, "pod hangs", "pods hang"), unaffected)
	}
	if len(failed) > 0 {
		first := failed[0]
		say("the inspection of pod %s has failed %s%s: %s.", names[first.PodUID], plural(first.Failures, "time"),
			others(len(failed)-1, "pod fails", "pods fail"), printable.Text(first.Error))
	}
	if exits := r.UnconfirmedExits; len(exits) > 0 {
		oldest := slices.MinFunc(exits, func(a, b pleg.UnconfirmedExit) int { return a.Since.Compare(b.Since) })
		say("container %s of pod %s exited %s ago (code %d)%s; the runtime says running.",
			printable.Text(cmp.Or(oldest.Container, short(oldest.ContainerID))),
			printable.Text(nameOf(oldest.Namespace, oldest.Name, clip(string(oldest.PodUID)))),
			roughly(now.Sub(oldest.Since)), oldest.ExitCode, others(len(exits)-1, "has exited", "have exited"))
	}
	if r.Stream.State == pleg.StreamBroken {
		say("the event stream is broken since %s: %s; changes are found by the next relist.",
			clockTime(r.Stream.Since), printable.Text(r.Stream.Error))
	}
	if r.ExitStream.State == pleg.StreamBroken {
		say("the exit stream is broken since %s: %s; exits are found as other changes are.",
			clockTime(r.ExitStream.Since), printable.Text(r.ExitStream.Error))
	}
	for _, s := range r.NamedSubscribers {
		if !s.BehindSince.IsZero() && now.Sub(s.BehindSince) > farBehind {
			say("subscriber %s is %s behind since %s (for %s).", printable.Text(s.Name), plural(s.Backlog, "pod"),
				clockTime(s.BehindSince), roughly(now.Sub(s.BehindSince)))
		}
	}
	return all
}

// openCall returns the oldest call for no pod, and since when it is unanswered. While a full relist
// hangs it is that if the runtime names no call.
func openCall(r *pleg.HealthReport) (text string, since time.Time, is bool) {
	for _, c := range r.CallsInFlight {
		if c.PodUID == "" && c.Object == "" {
			return callText(c), c.Since, true
		}
	}
	if r.HungRelist == nil {
		return "", time.Time{}, false
	}
	return "the relist", r.HungRelist.Since, true
}

// besideList says what is known while a full list hangs: the pods whose inspection hangs too, the
// oldest first, and whether others are inspected: of these deaths are seen.
func besideList(r *pleg.HealthReport, hung []pleg.FailingPod, names map[types.UID]string) (text string) {
	noun := "pod"
	if len(hung) > 0 {
		uid := hung[0].PodUID
		text = fmt.Sprintf("; %s is not answered either%s",
			inspectionText(r, uid, names[uid]), others(len(hung)-1, "pod hangs", "pods hang"))
		noun = "other pod"
	}
	if r.HungRelist.Answered == 0 {
		return text + "; no pod has been inspected since; until the list is answered, changes may not be seen"
	}
	return text + fmt.Sprintf("; %s been inspected since; until the list is answered, what is created or removed may not "+
		"be seen", have(r.HungRelist.Answered, noun))
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
