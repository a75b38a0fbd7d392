package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

const timeLayout = "15:04:05.000"

// printer prints what changes in the statuses of pods, a line each.
type printer struct {
	mu   sync.Mutex
	w    io.Writer         // guarded by mu
	last map[string]string // by pod; guarded by mu
}

func newPrinter(w io.Writer) *printer { return &printer{w: w, last: map[string]string{}} }

func (p *printer) print(pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := describe(*pod)
	if name := pod.Namespace + "/" + pod.Name; p.last[name] != line {
		p.last[name] = line
		fmt.Fprintf(p.w, "%s  %-24s %s\n", time.Now().Format(timeLayout), name, line)
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
