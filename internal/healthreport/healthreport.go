// Package healthreport contains what packages plegz and plegwatch read from health reports in the same
// way.
package healthreport

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg"
)

// InspectsNone reports whether the generator is unhealthy because the runtime answers no inspection.
func InspectsNone(r *pleg.HealthReport) bool {
	return strings.HasPrefix(r.Reason, "pleg cannot inspect any pod: ")
}

// Trouble returns the reports after the last one that is ok, from a history with the oldest first. These
// are the problems that were not over at its end.
func Trouble[T any](past []T, isOK func(T) bool) []T {
	first := len(past)
	for first > 0 && !isOK(past[first-1]) {
		first--
	}
	return past[first:]
}

// Accepts is part of package cri's errors if the runtime accepts connections but has never answered a call.
const Accepts = "the runtime accepts connections, and has not answered yet"

// SlowCall is the time after which an unanswered list is reported as stuck.
const SlowCall = 10 * time.Second

// ListIsStuck reports whether a list has been stuck for long enough to be reported.
func ListIsStuck(r *pleg.HealthReport, now time.Time) bool {
	return r.StuckRelist != nil && now.Sub(r.StuckRelist.Since) > SlowCall
}

// BlocksNoList reports whether a list was answered after the pod got stuck. The pod then does not
// block the lists.
func BlocksNoList(r *pleg.HealthReport, pod *pleg.FailingPod) bool {
	return !pod.StuckSince.IsZero() && pod.StuckSince.Before(r.LastRelist)
}

// StuckContainers returns the calls about containers that have been unanswered for more than a second
// and may block the lists, oldest first. No list may have shown these containers.
func StuckContainers(r *pleg.HealthReport, now time.Time) []pleg.RuntimeCall {
	return slices.DeleteFunc(slices.Clone(r.CallsInFlight), func(c pleg.RuntimeCall) bool {
		return c.ObjectID == "" || now.Sub(c.Since) <= time.Second ||
			slices.ContainsFunc(r.FailingPods, func(p pleg.FailingPod) bool {
				return p.PodUID == c.PodUID && BlocksNoList(r, &p)
			})
	})
}

// ages matches the durations in a sentence of package plegz.
var ages = regexp.MustCompile(` \(for [^)]*\)`)

// WithoutAges removes the durations from a sentence. They are out of date when it is shown later.
func WithoutAges(sentence string) string { return ages.ReplaceAllString(sentence, "") }

// Unlisted returns the names in a call's Object if they are those of a container that no list has
// shown: "container shop/db-0/db (3f2a…)".
func Unlisted(object string) (namespace, pod, container string, is bool) {
	text, _, _ := strings.Cut(strings.TrimPrefix(object, "container "), " (")
	names := strings.Split(text, "/")
	if len(names) != 3 {
		return "", "", "", false
	}
	return names[0], names[1], names[2], true
}

// Plural returns a number and a noun, which gets an "s" if the number is not 1.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
