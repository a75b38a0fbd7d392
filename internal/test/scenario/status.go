package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/datadriven"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// printStatus prints the cached status of one pod; without "pod", of all pods.
func printStatus(s *scenario, c command) string {
	if c.has("pod") {
		return s.statusLine(s.cache.Get(c.uid()))
	}
	var out strings.Builder
	for _, status := range s.cache.GetAll() {
		out.WriteString(s.statusLine(s.cache.Get(status.ID)))
	}
	if out.Len() == 0 {
		return "the cache is empty"
	}
	return out.String()
}

func (s *scenario) statusLine(status *pleg.PodStatus, err error) string {
	line := string(status.ID) + ":"
	for _, c := range status.ContainerStatuses {
		line += fmt.Sprintf(" %s=%s", c.ID.ID, c.State)
		if c.State == pleg.ContainerStateExited {
			line += fmt.Sprintf("(%d,%s)", c.ExitCode, c.Reason)
		}
	}
	for _, sandbox := range status.SandboxStatuses {
		state := "notready"
		if sandbox.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			state = "ready"
		}
		line += fmt.Sprintf(" sandbox:%s=%s", sandbox.Id, state)
	}
	if len(status.IPs) > 0 {
		line += " " + strings.Join(status.IPs, " ")
	}
	if status.TimeStamp.IsZero() {
		line += " nothing"
	} else {
		line += ", of " + s.since(status.TimeStamp)
	}
	if err != nil {
		line += "; " + err.Error()
	}
	return line + "\n"
}

func printHealth(s *scenario, _ command) string {
	if ok, err := s.g.Healthy(); !ok {
		return "not healthy: " + err.Error()
	}
	return "healthy"
}

// printReport prints the fields of the health report except Healthy and Reason.
func printReport(s *scenario, _ command) string {
	r := s.g.HealthReport()
	var out strings.Builder
	fmt.Fprintf(&out, "%d pods", r.Pods)
	if !r.LastRelist.IsZero() {
		fmt.Fprintf(&out, ", listed at %s", s.since(r.LastRelist))
	}
	if r.RelistError != "" {
		fmt.Fprintf(&out, "\nthe last list: %s", r.RelistError)
	}
	for _, call := range r.CallsInFlight {
		object := cmp.Or(call.Object, string(call.PodUID))
		fmt.Fprintf(&out, "\nin flight since %s: %s", s.since(call.Since), strings.TrimSpace(call.Method+" "+object))
	}
	for _, pod := range r.FailingPods {
		fmt.Fprintf(&out, "\n%s:", pod.PodUID)
		if !pod.StuckSince.IsZero() {
			fmt.Fprintf(&out, " is stuck since %s;", s.since(pod.StuckSince))
		}
		fmt.Fprintf(&out, " %d failures", pod.Failures)
		if pod.Error != "" {
			fmt.Fprintf(&out, ": %s", pod.Error)
		}
	}
	if r.BlockedReaders > 0 {
		fmt.Fprintf(&out, "\n%d blocked readers", r.BlockedReaders)
	}
	if r.Backlog > 0 {
		fmt.Fprintf(&out, "\nupdates of %d pods not delivered", r.Backlog)
	}
	return out.String()
}

// printMetrics prints each of the named metrics that is not zero.
func printMetrics(s *scenario, c command) string {
	families, err := s.metrics.Gather()
	if err != nil {
		c.fatalf("%v", err)
	}
	var lines []string
	for _, f := range families {
		if !slices.ContainsFunc(c.args, func(a datadriven.CmdArg) bool { return a.Key == f.GetName() }) {
			continue
		}
		for _, m := range f.GetMetric() {
			// A metric is a counter, a gauge or a histogram. The getters of the other kinds return zero.
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if value != 0 {
				lines = append(lines, fmt.Sprintf("%s %v", name, value))
			}
		}
	}
	if len(lines) == 0 {
		return "all zero"
	}
	return strings.Join(lines, "\n")
}
