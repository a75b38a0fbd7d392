package main

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// The states of a sandbox. The states of a container are pleg's.
const (
	sandboxReady    = "ready"
	sandboxNotReady = "not ready"
)

// line is the output for one event.
type line struct {
	// Time is when the event was read.
	Time time.Time `json:"time"`
	// Node is the name of the node.
	Node      string    `json:"node,omitempty"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"podUID"`
	// Container is the container's name; empty for a sandbox, and for a PodSync unless it corrects how the
	// container ended.
	Container   string                     `json:"container,omitempty"`
	ContainerID string                     `json:"containerID,omitempty"`
	Sandbox     bool                       `json:"sandbox,omitempty"`
	Event       pleg.PodLifeCycleEventType `json:"event"`
	// Initial is true if this had happened before the watch began.
	Initial bool `json:"initial,omitempty"`

	// State comes from the cache or, if the cache has dropped a dead container, from the event. It
	// is empty when the container or sandbox is gone.

	State        string `json:"state,omitempty"`
	IP           string `json:"ip,omitempty"` // of a sandbox
	RestartCount int    `json:"restartCount,omitempty"`
	// StartedAt and FinishedAt are the runtime's times of a container.
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	ExitCode   *int      `json:"exitCode,omitempty"` // of a container that has exited
	Reason     string    `json:"reason,omitempty"`
	// Unconfirmed is true if an exit event has reported the exit, and the runtime's status has not shown it yet.
	Unconfirmed bool   `json:"unconfirmed,omitempty"`
	Error       string `json:"error,omitempty"` // why the pod could not be inspected

	// LagSeconds is the time from the runtime's own timestamp to the reading of the event. It is
	// missing without a timestamp, as for sandboxes, and for what happened before the watch began.
	LagSeconds *float64 `json:"lagSeconds,omitempty"`
	// Cause is what made the generator look.
	Cause pleg.Cause `json:"cause"`

	// happened is the runtime's time of the event; for a sandbox, of its creation.
	happened time.Time
}

// describe returns the line of an event that was read now, with what the cache has of it. The
// generator stores the status before it sends the event, so Get does not have to wait.
func describe(e *pleg.PodLifecycleEvent, cache *pleg.PodCache, now, began time.Time) line {
	l := line{
		Time: now, Namespace: e.Pod.Namespace, Pod: e.Pod.Name, PodUID: e.ID,
		Sandbox: e.IsSandbox(), Event: e.Type, Initial: e.Initial, Cause: e.Cause,
	}
	if e.Container != nil {
		l.Container, l.ContainerID = e.Container.Name, e.Container.ID.ID
	}
	status, err := cache.Get(e.ID)
	if err != nil {
		l.Error = err.Error()
	}
	if e.IsSandbox() {
		l.fillSandbox(status)
		return l
	}
	l.fillContainer(status, e.Status)
	if !l.Initial && l.happened.After(began) {
		lag := now.Sub(l.happened).Seconds()
		l.LagSeconds = &lag
	}
	return l
}

// fillContainer fills in the container's status. last is the status in the event: if a death is
// read late, the cache may have dropped the container.
func (l *line) fillContainer(pod *pleg.PodStatus, last *pleg.Status) {
	s := last
	if i := slices.IndexFunc(pod.ContainerStatuses, l.isOf); i >= 0 {
		s = pod.ContainerStatuses[i]
	} else if l.Event != pleg.ContainerDied || last == nil || last.State != pleg.ContainerStateExited {
		return
	}
	l.State, l.Reason, l.RestartCount = string(s.State), s.Reason, s.RestartCount
	l.StartedAt, l.FinishedAt, l.Unconfirmed = s.StartedAt, s.FinishedAt, s.Unconfirmed
	if s.State == pleg.ContainerStateExited && !s.EndUnknown {
		l.ExitCode = &s.ExitCode
	}
	switch l.Event {
	case pleg.ContainerStarted:
		l.happened = s.StartedAt
	case pleg.ContainerDied:
		l.happened = s.FinishedAt
	default:
	}
}

// isOf reports whether a status belongs to the line's container.
func (l *line) isOf(s *pleg.Status) bool { return s.ID.ID == l.ContainerID }

// fillSandbox fills in the sandbox's status. The runtime reports when it began to make
// a sandbox, but not when it was ready, nor when it ended.
func (l *line) fillSandbox(pod *pleg.PodStatus) {
	for _, s := range pod.SandboxStatuses {
		if s.Id != l.ContainerID {
			continue
		}
		l.State, l.IP, l.happened = sandboxNotReady, s.GetNetwork().GetIp(), time.Unix(0, s.CreatedAt)
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			l.State = sandboxReady
		}
	}
}
