package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

const timeLayout = "15:04:05.000"

// printer returns what prints the changes in the statuses of pods, a line each. It is called by one goroutine at a
// time.
func printer(w io.Writer) func(*v1.Pod) {
	last := map[string]string{} // by pod
	return func(pod *v1.Pod) {
		line := describe(*pod)
		if name := pod.Namespace + "/" + pod.Name; last[name] != line {
			last[name] = line
			fmt.Fprintf(w, "%s  %-24s %s\n", time.Now().Format(timeLayout), name, line)
		}
	}
}

// describe says how a pod is: "Running  ready 1/1  web: running, restarts 2".
func describe(pod v1.Pod) string {
	ready := 0
	for _, s := range pod.Status.ContainerStatuses {
		if s.Ready {
			ready++
		}
	}
	text := fmt.Sprintf("%-9s ready %d/%d", pod.Status.Phase, ready, len(pod.Status.ContainerStatuses))
	separator := "  "
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		text += separator + s.Name + ": " + state(s.State)
		if s.RestartCount > 0 {
			text += fmt.Sprintf(", restarts %d", s.RestartCount)
		}
		separator = "; "
	}
	return text
}

func state(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("exited %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	case s.Waiting != nil && s.Waiting.Reason != "":
		return s.Waiting.Reason
	default:
		return "waiting"
	}
}
