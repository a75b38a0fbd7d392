package plegz

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/printable"
)

// The types below are the JSON, which doc.go describes.

// head is an answer without its lists.
type head struct {
	Time           time.Time       `json:"time"`
	Node           string          `json:"node,omitempty"`
	Level          level           `json:"level,omitempty"`
	Sentence       string          `json:"sentence,omitempty"`
	Notes          []string        `json:"notes,omitempty"`
	Health         json.RawMessage `json:"health,omitempty"`
	RecordingSince time.Time       `json:"recordingSince"`
	Position       string          `json:"position"`
	Full           bool            `json:"full"`
	GoneThrough    uint64          `json:"goneThrough"`
}

type pod struct {
	UID            string            `json:"uid"`
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	State          podState          `json:"state"`
	CreatedAt      time.Time         `json:"createdAt,omitzero"`
	RemovedAt      time.Time         `json:"removedAt,omitzero"`
	IPs            []string          `json:"ips,omitempty"`
	RuntimeHandler string            `json:"runtimeHandler,omitempty"`
	Restarts       int               `json:"restarts,omitempty"`
	ObservedAt     time.Time         `json:"observedAt,omitzero"`
	HangingSince   time.Time         `json:"hangingSince,omitzero"`
	Failures       int               `json:"failures,omitempty"`
	Error          string            `json:"error,omitempty"`
	Gone           uint64            `json:"gone,omitempty"`
	Containers     []life            `json:"containers,omitempty"`
	Sandboxes      []life            `json:"sandboxes,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Annotations    map[string]string `json:"annotations,omitempty"`
}

// life is that of a container or a sandbox.
type life struct {
	ID         string     `json:"id"`
	Name       string     `json:"name,omitempty"`
	State      pleg.State `json:"state"`
	CreatedAt  time.Time  `json:"createdAt,omitzero"`
	StartedAt  time.Time  `json:"startedAt,omitzero"`
	FinishedAt time.Time  `json:"finishedAt,omitzero"`
	RemovedAt  time.Time  `json:"removedAt,omitzero"`
	ExitCode   *int       `json:"exitCode,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	Message    string     `json:"message,omitempty"`
	Restarts   int        `json:"restarts,omitempty"`
	Image      string     `json:"image,omitempty"`
	Gone       uint64     `json:"gone,omitempty"`

	sandbox bool
}

// stateRemoved is the state of a container that is no longer listed.
const stateRemoved pleg.State = "removed"

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

// newEvent describes an event that was read at a time.
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
		if s.State == pleg.ContainerStateExited {
			v.ExitCode, v.Reason = &s.ExitCode, clip(s.Reason)
		}
	}
	v.encoded = encoded(v)
	return v
}

// maxText is how many bytes of a text are shown. A name in Kubernetes has 253 at most.
const maxText = 1024

// clip cuts a text that is too long to be shown.
func clip(s string) string { return clipTo(s, maxText) }

// clipTo cuts a text to at most this many bytes, and says so.
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

// maxList is how many elements of a list are shown that may be long.
const maxList = 50

// clipMap cuts what is too long to be shown of labels or annotations. Those shown are the
// first by key.
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

// clipList cuts what is too long to be shown.
func clipList(list []string) []string {
	shown := make([]string, 0, min(len(list), maxList))
	for _, s := range list[:min(len(list), maxList)] {
		shown = append(shown, clip(s))
	}
	return shown
}

// shownTime returns a time that JSON can express; zero, which is not shown, for others.
func shownTime(t time.Time) time.Time {
	if y := t.Year(); y < 1 || y > 9999 {
		return time.Time{}
	}
	return t
}

// encoded returns v as JSON, in which what a terminal could obey is escaped. The types here
// have nothing that cannot be encoded but a year beyond 9999, which shownTime keeps out.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return printable.JSON(b)
}
