package plegz

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// Event is a pleg.PodLifecycleEvent as JSON: on the page, in the output of plegwatch, and in its
// history. A missing field is unknown, or does not apply. Texts are cut after 1024 bytes.
type Event struct {
	// Time is when the event was read.
	Time time.Time `json:"time"`
	// Node is the node's name. NewEvent does not set it.
	Node      string    `json:"node,omitempty"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"podUID"`
	// Container and ContainerID name the container or sandbox. A PodSync has these fields only if
	// it corrects how the container ended. A sandbox has no name.
	Container   string                     `json:"container,omitempty"`
	ContainerID string                     `json:"containerID,omitempty"`
	Sandbox     bool                       `json:"sandbox,omitempty"`
	Event       pleg.PodLifeCycleEventType `json:"event"`
	// Initial is true if the event had happened before the subscription began.
	Initial bool `json:"initial,omitempty"`
	// State is created, running, exited or unknown for a container, and ready or not ready for a
	// sandbox. It is missing if the container or sandbox is gone.
	State string `json:"state,omitempty"`
	// IP is the sandbox's address.
	IP           string `json:"ip,omitempty"`
	RestartCount int    `json:"restartCount,omitempty"`
	// CreatedAt, StartedAt and FinishedAt are the runtime's times. CreatedAt is that of a sandbox.
	// StartedAt and FinishedAt are those of a container.
	CreatedAt  time.Time `json:"createdAt,omitzero"`
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// ExitCode and Reason say how the container exited.
	ExitCode *int   `json:"exitCode,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Unconfirmed is true if an exit event has reported the exit, and the runtime's status has not
	// shown it yet. A PodSync may correct the exit, and ContainerEnded reports its final reason.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// Error is why the pod could not be inspected.
	Error string `json:"error,omitempty"`
	// LagSeconds is the time from StartedAt or FinishedAt to Time. An Initial event has none.
	LagSeconds *float64 `json:"lagSeconds,omitempty"`
	// Cause is why the pod was listed.
	Cause pleg.Cause `json:"cause"`
}

// The states of a sandbox in an Event.
const (
	sandboxReady    = "ready"
	sandboxNotReady = "not ready"
)

// NewEvent describes an event. now is when the event was read. From the generator's cache, NewEvent
// takes a sandbox's status and the error of the pod's last inspection. It does not block.
func NewEvent(e *pleg.PodLifecycleEvent, cache *pleg.PodCache, now time.Time) Event {
	v := Event{
		Time: now, Namespace: clip(e.Pod.Namespace), Pod: clip(e.Pod.Name), PodUID: types.UID(clip(string(e.ID))),
		Sandbox: e.IsSandbox(), Event: e.Type, Initial: e.Initial, Cause: e.Cause,
	}
	if e.Container != nil {
		v.Container, v.ContainerID = clip(e.Container.Name), clip(e.Container.ID.ID)
	}
	status, err := cache.Get(e.ID)
	if err != nil {
		v.Error = clip(err.Error())
	}
	switch {
	case v.Sandbox:
		v.addSandbox(status)
	case e.Container != nil && e.Type != pleg.ContainerRemoved:
		v.addStatus(e.Status)
	}
	if at := v.HappenedAt(); !v.Initial && !v.Sandbox && !at.IsZero() {
		lag := now.Sub(at).Seconds()
		v.LagSeconds = &lag
	}
	return v
}

// addStatus adds a container's status; nil if no inspection has returned one.
func (v *Event) addStatus(s *pleg.Status) {
	isEnd := v.Event == pleg.ContainerDied || v.Event == pleg.ContainerEnded
	if s != nil {
		v.State, v.RestartCount = string(s.State), s.RestartCount
		v.StartedAt = shownTime(s.StartedAt)
	}
	switch {
	case s != nil && s.State == pleg.ContainerStateExited:
		v.FinishedAt, v.Reason, v.Unconfirmed = shownTime(s.FinishedAt), clip(s.Reason), s.Unconfirmed
		if !s.EndUnknown {
			code := s.ExitCode
			v.ExitCode = &code
		}
	case isEnd: // the container was gone before its end was seen
		v.State = string(pleg.ContainerStateExited)
	}
}

// addSandbox adds the sandbox's status. The runtime reports when it began to make a sandbox, but
// not when the sandbox was ready or ended.
func (v *Event) addSandbox(pod *pleg.PodStatus) {
	i := slices.IndexFunc(pod.SandboxStatuses, func(s *runtimeapi.PodSandboxStatus) bool { return s.Id == v.ContainerID })
	if i < 0 {
		return
	}
	s := pod.SandboxStatuses[i]
	v.State, v.IP, v.CreatedAt = sandboxNotReady, clip(s.GetNetwork().GetIp()), shownTime(time.Unix(0, s.CreatedAt))
	if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
		v.State = sandboxReady
	}
}

// HappenedAt returns the runtime's time of the event: when the container started or exited, or when
// the sandbox was created. It is zero if the runtime reports none.
func (v *Event) HappenedAt() time.Time {
	switch {
	case v.Sandbox:
		return v.CreatedAt
	case v.Event == pleg.ContainerStarted:
		return v.StartedAt
	case v.Event == pleg.ContainerDied || v.Event == pleg.ContainerEnded:
		return v.FinishedAt
	default:
		return time.Time{}
	}
}

// IsEndOf reports whether the event has the exit code of the container's life that began at started. A
// container with the same ID may have several lives.
func (v *Event) IsEndOf(started time.Time) bool {
	return v.ExitCode != nil && !started.IsZero() &&
		(v.StartedAt.Equal(started) || v.StartedAt.IsZero() && v.FinishedAt.After(started))
}

// event is an event of the history.
type event struct {
	Number uint64 `json:"number"`
	Event
	encoded []byte // the event as JSON
}

func newEvent(v Event, number uint64) *event {
	e := &event{Number: number, Event: v}
	e.encoded = encoded(e)
	return e
}
