package plegz

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/healthreport"
	"github.com/kubepleg/pleg/internal/printable"
)

// Level is the severity of a Condition.
type Level string

// The levels of a Condition.
const (
	LevelOK      Level = "ok"      // no problem is known
	LevelWarning Level = "warning" // there is a problem, but the generator is healthy
	LevelError   Level = "error"   // the generator is not healthy
)

// Condition describes the health of a node's runtime and generator in words. The page and Healthz
// show it.
type Condition struct {
	Level Level `json:"level"`
	// Sentence describes the worst problem and, if known, when the problem began and what to do. Advice
	// is added when the problem has lasted for ten seconds. If several pods have the problem, Sentence
	// names one and counts the others, which are in the report. It contains ages, so publish it again
	// from time to time. Texts from the runtime are escaped, and long texts are cut.
	Sentence string `json:"sentence"`
	// Notes describes the other problems, in one sentence each. It starts with a lower-case letter.
	Notes []string `json:"notes,omitempty"`
}

// changing matches the parts of a sentence that may change while the problem stays the same.
var changing = regexp.MustCompile(`\(for [^)]*\)|` +
	`; other pods are not affected|\b[\d.]+ (other )?(ms|s|min|h|d|times?|pods?)\b`)

// Resembles reports whether c and other have the same level and their sentences describe the same
// problem, with the same advice. It ignores Notes, and ages and counts in sentences. At LevelOK, all
// Conditions resemble each other. So a program that publishes only Conditions that do not resemble the
// last one should also publish every few minutes. Notes contain ages, too, and differ every second.
func (c Condition) Resembles(other Condition) bool {
	return c.Level == other.Level && (c.Level == LevelOK ||
		changing.ReplaceAllString(c.Sentence, "") == changing.ReplaceAllString(other.Sentence, ""))
}

// PastCondition is a Condition that did not resemble the previous Condition.
type PastCondition struct {
	// Time is when the Condition was first seen.
	Time time.Time `json:"time"`
	Condition
}

// NewCondition puts a generator's HealthReport into words. now is the time of the report, by the
// generator's clock.
func NewCondition(report pleg.HealthReport, now time.Time) Condition {
	return newCondition(report, nil, now).Condition
}

// condition is a Condition with the health report from which it was made.
type condition struct {
	Condition
	report  pleg.HealthReport
	health  health
	encoded []byte // the health as JSON; nil before history.describe
	// away is when the runtime stopped answering. If only lists fail, it is when the last successful
	// list began or, before it, the first list. It is zero otherwise.
	away time.Time
}

// newCondition describes a report in words. now is the current time. The listed pods contain the
// names and IDs for the report's calls and failing pods.
func newCondition(r pleg.HealthReport, pods []*pleg.Pod, now time.Time) condition {
	r = clipReport(r)
	stuck, failed := failingPods(&r, now)
	notes := troubles(&r, stuck, failed, now)
	c := condition{report: r, Condition: Condition{Level: LevelOK, Notes: notes}}
	switch reason := printable.Text(rounded(r.Reason)) + "."; {
	case !r.Healthy && len(notes) == 0:
		c.Level, c.Sentence = LevelError, "Not healthy: "+reason
	case !r.Healthy:
		c.Level, c.Sentence, c.Notes = LevelError, "Not healthy: "+notes[0], notes[1:]
		if isFrozen(&r) || r.RelistError == "" { // otherwise, the reason would repeat the error
			c.Notes = append([]string{"reason: " + reason}, c.Notes...)
		}
	case len(notes) > 0:
		c.Level, c.Sentence, c.Notes = LevelWarning, "Degraded: "+notes[0], notes[1:]
	default:
		c.Sentence = fmt.Sprintf("Healthy: %s, the event stream is %s.", healthreport.Plural(r.Pods, "pod"), r.Stream.State)
	}
	if since, is := unanswered(&r, stuck, now); is {
		c.away = since
	} else if isSilent(&r, now) {
		c.away = cmp.Or(r.LastRelist, r.RelistFailingSince)
	}
	c.health = newHealth(&r, pods)
	return c
}

// isFrozen reports whether the runtime has stopped answering calls.
func isFrozen(r *pleg.HealthReport) bool { return r.StuckRelist != nil && r.StuckRelist.Frozen }

// undecided is how long a call may be unanswered before a sentence blames the runtime or a pod. It is not known
// at first which of them is stuck. A healthy runtime answers most lists within this time.
const undecided = 2 * time.Second

// isUndecided reports whether an inspection is stuck, nothing has been answered since it began, and it or
// the list that may decide is younger than undecided.
func isUndecided(r *pleg.HealthReport, stuck []pleg.FailingPod, now time.Time) bool {
	if isFrozen(r) || !isQuiet(r, stuck) {
		return false
	}
	list, open := openList(r)
	return now.Sub(stuck[0].StuckSince) <= undecided || open && now.Sub(list.Since) <= undecided
}

// isQuiet reports whether the runtime has answered nothing since the first inspection of a stuck pod began.
func isQuiet(r *pleg.HealthReport, stuck []pleg.FailingPod) bool {
	return len(stuck) > 0 && !r.LastAnswer.IsZero() && !stuck[0].StuckSince.Before(r.LastAnswer)
}

// unanswered returns the time since when the runtime has answered no call, if the runtime is frozen,
// or if it answers neither the first inspection of a stuck pod nor a list.
func unanswered(r *pleg.HealthReport, stuck []pleg.FailingPod, now time.Time) (since time.Time, is bool) {
	switch {
	case isFrozen(r) && r.LastAnswer.IsZero():
		return cmp.Or(r.RelistFailingSince, r.StuckRelist.Since), true // lists may have failed before
	case isFrozen(r):
		return r.LastAnswer, true
	default:
		list, open := openList(r)
		return r.LastAnswer, isQuiet(r, stuck) && open && now.Sub(list.Since) > undecided
	}
}

// failingPods returns the report's pods with stuck inspections, oldest first, and the pods with failed
// inspections, most failures first. While it is undecided what is stuck, no pod is; pods that failed
// before are then among the failed ones.
func failingPods(r *pleg.HealthReport, now time.Time) (stuck, failed []pleg.FailingPod) {
	for _, f := range r.FailingPods {
		if f.StuckSince.IsZero() {
			failed = append(failed, f)
		} else {
			stuck = append(stuck, f)
		}
	}
	slices.SortStableFunc(stuck, func(a, b pleg.FailingPod) int { return a.StuckSince.Compare(b.StuckSince) })
	if isUndecided(r, stuck, now) {
		neverFailed := func(f pleg.FailingPod) bool { return f.Failures == 0 }
		stuck, failed = nil, append(failed, slices.DeleteFunc(stuck, neverFailed)...)
	}
	slices.SortStableFunc(failed, func(a, b pleg.FailingPod) int { return cmp.Compare(b.Failures, a.Failures) })
	return stuck, failed
}

// isSilent reports whether lists fail, and the runtime has answered no other call for a while either,
// for example because it does not run.
func isSilent(r *pleg.HealthReport, now time.Time) bool {
	return r.RelistError != "" && now.Sub(r.LastRelist) > healthreport.SlowCall &&
		now.Sub(r.LastAnswer) > healthreport.SlowCall
}

// withAdvice returns what to do about stuck pods while the runtime answers some calls, and the text more,
// which counts the pods that the sentence does not name.
func withAdvice(r *pleg.HealthReport, more string) string {
	if healthreport.InspectsNone(r) {
		return more + ": restart the runtime"
	}
	return ": repair or end it" + more // the advice is about the pod that is named
}

// troubles returns the problems in a report, worst first, with one sentence each. If the runtime
// answers nothing, only one sentence is about calls.
func troubles(r *pleg.HealthReport, stuck, failed []pleg.FailingPod, now time.Time) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if since, is := unanswered(r, stuck, now); is {
		advice := ""
		if isFrozen(r) && now.Sub(since) > healthreport.SlowCall { // an agent that has just started waits, too
			advice = ": restart the runtime"
		}
		say("nothing has been answered since %s%s.", listsSince(r, since, since, now), advice)
		return append(all, exitTroubles(r, now)...)
	}
	if isSilent(r, now) {
		last, advice := cmp.Or(r.LastAnswer, r.RelistFailingSince), ""
		since := forLong(last, last, now)
		if r.LastAnswer.IsZero() {
			since = listsSince(r, last, last, now)
		}
		switch {
		case now.Sub(last) <= healthreport.SlowCall: // an agent that has just started waits
		case strings.Contains(r.RelistError, healthreport.Accepts):
			advice = ": restart the runtime"
		default:
			advice = ": start or restart the runtime"
		}
		say("nothing has been answered since %s%s (%s).", since, advice, printable.Text(rounded(r.RelistError)))
		return append(all, exitTroubles(r, now)...)
	}
	listIsStuck := healthreport.ListIsStuck(r, now)
	if listIsStuck {
		var suspects []pleg.FailingPod
		suspects, stuck = suspectsOf(r, stuck)
		all = append(all, stuckList(r, suspects, now))
	} else if call, is := openList(r); is && now.Sub(call.Since) > healthreport.SlowCall {
		say("%s has not been answered since %s.", callText(call), listsSince(r, call.Since, call.Since, now))
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
	exits := exitTroubles(r, now)
	if len(stuck) > 0 {
		first, more, effect := stuck[0], others(len(stuck)-1, "pod is stuck", "pods are stuck"), ""
		if now.Sub(first.StuckSince) > healthreport.SlowCall { // until then, the runtime itself may be stuck
			more = withAdvice(r, more)
		}
		switch {
		case healthreport.InspectsNone(r):
			effect = "; no pod can be inspected"
		case r.StuckRelist == nil && r.RelistError == "" && len(failed)+len(exits) == 0 && r.Pods > len(stuck):
			effect = "; other pods are not affected"
		}
		text, attempt := stuckObject(r, first)
		say("%s has been stuck since %s%s%s.", text, forLong(first.StuckSince, attempt, now), more, effect)
	}
	if len(failed) > 0 {
		first := failed[0]
		say("the inspection of pod %s has failed %s%s: %s.", podText(first), healthreport.Plural(first.Failures, "time"),
			others(len(failed)-1, "pod fails", "pods fail"), printable.Text(rounded(first.Error)))
	}
	all = append(all, exits...)
	if r.Stream.State == pleg.StreamBroken {
		say("the event stream has not been connected since %s; changes are found by the next relist.", brokenSince(r.Stream))
	}
	if r.ExitStream.State == pleg.StreamBroken {
		say("the exit stream has not been connected since %s; exits are found as other changes are.",
			brokenSince(r.ExitStream))
	}
	return all
}

// brokenSince says when a stream broke, and why. If this agent has never received an event, the stream
// may have been broken before the agent started.
func brokenSince(s pleg.StreamReport) string {
	text := clockTime(s.Since) + " (last attempt: " + printable.Text(rounded(s.Error)) + ")"
	if s.LastEvent.IsZero() {
		text = "at least " + text
	}
	return text
}

// suspectsOf returns the stuck pods that may block the lists, and the other stuck pods. It keeps the order.
func suspectsOf(r *pleg.HealthReport, stuck []pleg.FailingPod) (suspects, rest []pleg.FailingPod) {
	for _, p := range stuck {
		if healthreport.BlocksNoList(r, &p) {
			rest = append(rest, p)
		} else {
			suspects = append(suspects, p)
		}
	}
	return suspects, rest
}

// stuckList describes what blocks the lists. It names a container of the suspect that has been stuck
// longest. Without suspects, stuckList names the container of the oldest stuck call. If there is no
// such call, stuckList says that the container is not known. The suspects are sorted, oldest first.
func stuckList(r *pleg.HealthReport, suspects []pleg.FailingPod, now time.Time) string {
	since, effect := r.StuckRelist.Since, "; until a list is answered, pods that come or go may not be seen."
	if n := r.StuckRelist.Answered; n > 0 {
		effect = "; " + have(n, "pod") + " been inspected since" + effect
	}
	text, more := "", others(len(suspects)-1, "pod is stuck", "pods are stuck")
	if unlisted := healthreport.StuckContainers(r, now); len(suspects) > 0 {
		text, _ = stuckObject(r, suspects[0])
	} else if len(unlisted) > 0 {
		text, more = printable.Text(unlisted[0].Object), others(len(unlisted)-1, "container is stuck", "containers are stuck")
	}
	if text != "" {
		return fmt.Sprintf("%s has blocked the lists since %s%s%s",
			text, listsSince(r, since, since, now), withAdvice(r, more), effect)
	}
	list, attempt := "the list", since
	if call, is := openList(r); is {
		list, attempt = callText(call), call.Since
	}
	return fmt.Sprintf("a container blocks the lists, and which one is not known: %s has not been answered since %s%s",
		list, listsSince(r, since, attempt, now), effect)
}

// exitTroubles returns one sentence about all unconfirmed exits, if the oldest has been unconfirmed for
// long. A busy runtime needs some seconds to confirm an exit.
func exitTroubles(r *pleg.HealthReport, now time.Time) []string {
	exits := r.UnconfirmedExits
	if len(exits) == 0 {
		return nil
	}
	oldest := slices.MinFunc(exits, func(a, b pleg.UnconfirmedExit) int { return a.Since.Compare(b.Since) })
	if now.Sub(oldest.Since) <= healthreport.SlowCall {
		return nil
	}
	return []string{fmt.Sprintf("container %s of pod %s exited %s ago (code %d)%s; the runtime has not confirmed it.",
		printable.Text(cmp.Or(oldest.Container, short(oldest.ContainerID))),
		printable.Text(nameOf(oldest.Namespace, oldest.Name, clip(string(oldest.PodUID)))),
		roughly(now.Sub(oldest.Since)), oldest.ExitCode, others(len(exits)-1, "has exited", "have exited"))}
}

// forLong describes when a problem began, and how long it has lasted. If the current attempt began
// later, forLong adds how long this attempt has lasted.
func forLong(since, attempt, now time.Time) string {
	text := clockTime(since) + " (for " + roughly(now.Sub(since))
	if attempt.Sub(since) >= time.Second {
		text += ", this attempt for " + roughly(now.Sub(attempt))
	}
	return text + ")"
}

// listsSince is like forLong, for a problem of the lists. Before the first successful list, nobody knows
// whether the problem began earlier.
func listsSince(r *pleg.HealthReport, since, attempt, now time.Time) string {
	text := forLong(since, attempt, now)
	if r.LastRelist.IsZero() {
		text = "at least " + text
	}
	return text
}

// openList returns the oldest open call that is not about a pod. Such a call is a full list.
func openList(r *pleg.HealthReport) (call pleg.RuntimeCall, is bool) {
	i := slices.IndexFunc(r.CallsInFlight, func(c pleg.RuntimeCall) bool { return c.PodUID == "" && c.Object == "" })
	if i < 0 {
		return pleg.RuntimeCall{}, false
	}
	return r.CallsInFlight[i], true
}

// stuckObject returns the name of the container or pod whose inspection is stuck. It also returns
// the time when the stuck call began, or zero if no call is in flight.
func stuckObject(r *pleg.HealthReport, pod pleg.FailingPod) (text string, attempt time.Time) {
	call := callOf(r, pod)
	if call.ObjectID == "" {
		return "pod " + podText(pod), call.Since
	}
	return printable.Text(call.Object) + " of pod " + podText(pod), call.Since
}

// callOf returns the call that a pod waits for: its oldest call that names a container or sandbox, or
// else its oldest call. If the call names no object, callOf takes the object of the call that failed
// last. The call is zero if there is none.
func callOf(r *pleg.HealthReport, pod pleg.FailingPod) (call pleg.RuntimeCall) {
	for _, c := range slices.Backward(r.CallsInFlight) {
		if c.PodUID == pod.PodUID && (c.ObjectID != "" || call.ObjectID == "") {
			call = c
		}
	}
	if call.ObjectID == "" && pod.Call != nil {
		call.Object, call.ObjectID = pod.Call.Object, pod.Call.ObjectID
	}
	return call
}

func podText(p pleg.FailingPod) string {
	return printable.Text(nameOf(p.Namespace, p.Name, clip(string(p.PodUID))))
}

func callText(c pleg.RuntimeCall) string {
	if c.Object == "" {
		return printable.Text(c.Method)
	}
	return printable.Text(c.Method + " of " + c.Object)
}
