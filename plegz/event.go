package plegz

import (
	"time"

	"github.com/kubepleg/pleg"
)

// event is an event in JSON form. doc.go describes the fields.
type event struct {
	Number      uint64                     `json:"number"`
	Time        time.Time                  `json:"time"`
	ListedAt    time.Time                  `json:"listedAt"`
	PodUID      string                     `json:"podUID"`
	Namespace   string                     `json:"namespace"`
	Pod         string                     `json:"pod"`
	Container   string                     `json:"container,omitempty"`
	ContainerID string                     `json:"containerID,omitempty"`
	Sandbox     bool                       `json:"sandbox,omitempty"`
	Event       pleg.PodLifeCycleEventType `json:"event"`
	ExitCode    *int                       `json:"exitCode,omitempty"`
	Reason      string                     `json:"reason,omitempty"`
	Restarts    int                        `json:"restarts,omitempty"`
	Cause       pleg.Cause                 `json:"cause"`

	encoded []byte // the event as JSON
}

// newEvent converts an event of the generator to JSON form. now is when the event was read.
func newEvent(e *pleg.PodLifecycleEvent, number uint64, now time.Time) *event {
	v := &event{
		Number: number, Time: now, ListedAt: e.ListedAt, PodUID: clip(string(e.ID)),
		Namespace: clip(e.Pod.Namespace), Pod: clip(e.Pod.Name), Event: e.Type, Sandbox: e.IsSandbox(), Cause: e.Cause,
	}
	if e.Container != nil {
		v.Container, v.ContainerID = clip(e.Container.Name), clip(e.Container.ID.ID)
	}
	if s := e.Status; s != nil {
		v.Restarts = s.RestartCount
		if s.State == pleg.ContainerStateExited && !s.EndUnknown {
			v.ExitCode, v.Reason = &s.ExitCode, clip(s.Reason)
		}
	}
	v.encoded = encoded(v)
	return v
}
