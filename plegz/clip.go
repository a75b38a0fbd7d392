package plegz

import (
	"maps"
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// maxText is the maximum length of a shown text, in bytes. A name in Kubernetes has at most 253
// bytes.
const maxText = 1024

// clip cuts a text to maxText bytes.
func clip(s string) string { return clipTo(s, maxText) }

// clipTo cuts a text to the limit most, in bytes. It marks the cut with an ellipsis.
func clipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// maxList is the maximum number of shown elements of a list.
const maxList = 50

// clipMap returns the first maxList entries of a map of labels or annotations, sorted by key. It
// cuts long texts.
func clipMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(m))
	shown := make(map[string]string, min(len(keys), maxList))
	for _, k := range keys[:min(len(keys), maxList)] {
		shown[clip(k)] = clip(m[k])
	}
	return shown
}

// clipList returns the first maxList texts of a list. It cuts long texts.
func clipList(list []string) []string {
	shown := make([]string, 0, min(len(list), maxList))
	for _, s := range list[:min(len(list), maxList)] {
		shown = append(shown, clip(s))
	}
	return shown
}

// clipReport returns a copy of the report in which long texts are cut.
func clipReport(r pleg.HealthReport) pleg.HealthReport {
	r.Reason, r.RelistError, r.Runtime = clip(r.Reason), clip(r.RelistError), clip(r.Runtime)
	r.Stream.Error, r.ExitStream.Error = clip(r.Stream.Error), clip(r.ExitStream.Error)
	r.FailingPods = clipPods(r.FailingPods)
	if r.StuckRelist != nil {
		stuck := *r.StuckRelist
		stuck.Suspects = clipPods(stuck.Suspects)
		r.StuckRelist = &stuck
	}
	r.CallsInFlight = slices.Clone(r.CallsInFlight)
	for i := range r.CallsInFlight {
		r.CallsInFlight[i] = clipCall(r.CallsInFlight[i])
	}
	r.UnconfirmedExits = slices.Clone(r.UnconfirmedExits)
	for i := range r.UnconfirmedExits {
		e := &r.UnconfirmedExits[i]
		e.Namespace, e.Name, e.Container = clip(e.Namespace), clip(e.Name), clip(e.Container)
	}
	return r
}

func clipPods(pods []pleg.FailingPod) []pleg.FailingPod {
	pods = slices.Clone(pods)
	for i := range pods {
		p := &pods[i]
		p.Namespace, p.Name, p.Error = clip(p.Namespace), clip(p.Name), clip(p.Error)
		if p.Call != nil {
			failed := clipCall(*p.Call)
			failed.PodUID = types.UID(clip(string(failed.PodUID)))
			p.Call = &failed
		}
	}
	return pods
}

func clipCall(c pleg.RuntimeCall) pleg.RuntimeCall {
	c.Object, c.ObjectID = clip(c.Object), clip(c.ObjectID)
	return c
}

// clipLists cuts the lists of a clipped report to maxList elements, because the report is sent
// every second. No failure is lost, because the answer also reports each failure with its pod.
func clipLists(r pleg.HealthReport) pleg.HealthReport {
	r.FailingPods = firstPods(r.FailingPods)
	if r.StuckRelist != nil {
		stuck := *r.StuckRelist
		stuck.Suspects = firstPods(stuck.Suspects)
		r.StuckRelist = &stuck
	}
	r.CallsInFlight = slices.Clone(r.CallsInFlight[:min(len(r.CallsInFlight), maxList)])
	for i := range r.CallsInFlight {
		r.CallsInFlight[i].PodUID = types.UID(clip(string(r.CallsInFlight[i].PodUID)))
	}
	r.UnconfirmedExits = slices.Clone(r.UnconfirmedExits[:min(len(r.UnconfirmedExits), maxList)])
	for i := range r.UnconfirmedExits {
		e := &r.UnconfirmedExits[i]
		e.PodUID, e.ContainerID = types.UID(clip(string(e.PodUID))), clip(e.ContainerID)
	}
	return r
}

func firstPods(pods []pleg.FailingPod) []pleg.FailingPod {
	pods = slices.Clone(pods[:min(len(pods), maxList)])
	for i := range pods {
		pods[i].PodUID = types.UID(clip(string(pods[i].PodUID)))
	}
	return pods
}
