package main

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// The states of a sandbox in the output. For a container's states the output uses pleg's names.
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
	// Container is the container's name. It is empty for a sandbox, and for a PodSync that does not
	// correct how a container ended.
	Container   string                     `json:"container,omitempty"`
	ContainerID string                     `json:"containerID,omitempty"`
	Sandbox     bool                       `json:"sandbox,omitempty"`
	Event       pleg.PodLifeCycleEventType `json:"event"`
	// Initial is true if the event describes a change from before the watch began.
	Initial bool `json:"initial,omitempty"`

	// State comes from the cache. If the cache has dropped a dead container, State comes from the
	// event. It is empty if the container or sandbox is gone.

	State        string `json:"state,omitempty"`
	IP           string `json:"ip,omitempty"` // only for a sandbox
	RestartCount int    `json:"restartCount,omitempty"`
	// StartedAt and FinishedAt are the container's times by the runtime's clock.
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	ExitCode   *int      `json:"exitCode,omitempty"` // only for an exited container
	Reason     string    `json:"reason,omitempty"`
	// Unconfirmed is true if an exit event reported the exit, but the runtime's status does not
	// show it yet.
	Unconfirmed bool   `json:"unconfirmed,omitempty"`
	Error       string `json:"error,omitempty"` // why the pod could not be inspected

	// LagSeconds is the time from the runtime's own timestamp to the reading of the event. It is
	// nil if the runtime has no timestamp, as for sandboxes, or if the event happened before the
	// watch began.
	LagSeconds *float64 `json:"lagSeconds,omitempty"`
	// Cause is the reason why the generator listed or inspected the pod.
	Cause pleg.Cause `json:"cause"`

	// happened is the runtime's time of the event. For a sandbox it is the time of its creation.
	happened time.Time
}

// describe returns the output line of an event that was read at the time now. It adds the status
// from the cache. The generator stores the status before it sends the event, so Get does not have
// to wait.
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

// fillContainer fills in the container's status. last is the status in the event, for the case that
// the cache has already dropped a dead container.
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

// isOf reports whether s is the status of the line's container.
func (l *line) isOf(s *pleg.Status) bool { return s.ID.ID == l.ContainerID }

// fillSandbox fills in the sandbox's status. The runtime reports when it created the sandbox, but
// not when the sandbox became ready or ended.
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
