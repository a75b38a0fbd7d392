package plegz

import (
	"time"

	"github.com/kubepleg/pleg"
)

// podState is a pod's state in a word.
type podState string

const (
	podStuck     podState = "stuck"     // its inspection has not been answered
	podFailing   podState = "failing"   // its inspection fails
	podCrashed   podState = "crashed"   // a container has ended with an error and does not run again yet
	podStarting  podState = "starting"  // nothing runs yet
	podRunning   podState = "running"   // a container runs
	podCompleted podState = "completed" // every container has ended, none with an error that is known
	podStopped   podState = "stopped"   // its sandbox is not ready
	podRemoved   podState = "removed"   // it is no longer listed
)

// pod is a pod as JSON; doc.go describes the fields.
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
	StuckSince     time.Time         `json:"stuckSince,omitzero"`
	Failures       int               `json:"failures,omitempty"`
	Error          string            `json:"error,omitempty"`
	Gone           uint64            `json:"gone,omitempty"`
	Containers     []life            `json:"containers,omitempty"`
	Sandboxes      []life            `json:"sandboxes,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Annotations    map[string]string `json:"annotations,omitempty"`
}

// life is one container or sandbox, from its creation to its removal.
type life struct {
	ID         string     `json:"id"`
	Name       string     `json:"name,omitempty"`
	State      pleg.State `json:"state"`
	CreatedAt  time.Time  `json:"createdAt,omitzero"`
	StartedAt  time.Time  `json:"startedAt,omitzero"`
	FinishedAt time.Time  `json:"finishedAt,omitzero"`
	RemovedAt  time.Time  `json:"removedAt,omitzero"`
	ExitCode   *int       `json:"exitCode,omitempty"`
	// Unconfirmed is true if an exit event has reported the end, and the runtime's status has not.
	Unconfirmed bool   `json:"unconfirmed,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Message     string `json:"message,omitempty"`
	Restarts    int    `json:"restartCount,omitempty"`
	Image       string `json:"image,omitempty"`
	Gone        uint64 `json:"gone,omitempty"`

	sandbox bool
	place   int // position in the list
}

// stateRemoved is the state of a container that is no longer listed.
const stateRemoved pleg.State = "removed"

// observed is what the generator knows of a pod.
type observed struct {
	listed  *pleg.Pod
	status  *pleg.PodStatus // nil if there is none yet
	failing pleg.FailingPod // zero while its inspection is neither stuck nor failing
	err     string          // error of the last inspection
}

// lives returns the lives of the listed containers and sandboxes by ID. ended has the times of ends
// that the statuses do not have.
func (o observed) lives(ended map[string]time.Time) map[string]*life {
	statuses := make(map[string]*pleg.Status)
	if o.status != nil {
		for _, s := range o.status.ContainerStatuses {
			statuses[s.ID.ID] = s
		}
	}
	lives := make(map[string]*life)
	add := func(c *pleg.Container, s *pleg.Status, sandbox bool) {
		l := newLife(c, s, ended[clip(c.ID.ID)])
		l.sandbox, l.place = sandbox, len(lives)
		lives[l.ID] = &l
	}
	for _, c := range o.listed.Containers {
		add(c, statuses[c.ID.ID], false)
	}
	for _, s := range o.listed.Sandboxes {
		add(s, nil, true)
	}
	return lives
}

// newLife returns the life of a listed container. The state comes from the list, the times from the
// status, which may be nil. ended is used if the status has no time of the end.
func newLife(c *pleg.Container, s *pleg.Status, ended time.Time) life {
	l := life{
		ID: clip(c.ID.ID), Name: clip(c.Name), State: c.State, Restarts: int(c.Attempt), Image: clip(c.Image),
	}
	if c.CreatedAt > 0 {
		l.CreatedAt = time.Unix(0, c.CreatedAt).UTC()
	}
	if s != nil {
		l.add(s)
	}
	if c.State == pleg.ContainerStateExited && l.FinishedAt.IsZero() {
		l.FinishedAt = ended
	}
	return l
}

// add takes in what a status says.
func (l *life) add(s *pleg.Status) {
	l.Restarts = s.RestartCount
	if created := shownTime(s.CreatedAt); !created.IsZero() {
		l.CreatedAt = created
	}
	l.StartedAt = shownTime(s.StartedAt)
	if s.State == pleg.ContainerStateExited {
		l.FinishedAt, l.ExitCode, l.Unconfirmed = shownTime(s.FinishedAt), &s.ExitCode, s.Unconfirmed
		l.Reason, l.Message = clip(s.Reason), clip(s.Message)
	}
}

// view returns a pod as it is shown, except for the fields that only the history knows.
func (o observed) view(labels bool) pod {
	p := pod{
		UID: clip(string(o.listed.ID)), Namespace: clip(o.listed.Namespace), Name: clip(o.listed.Name),
		RuntimeHandler: clip(o.listed.RuntimeHandler), StuckSince: o.failing.StuckSince,
		Failures: o.failing.Failures, Error: clip(o.failing.Error),
	}
	if p.Error == "" {
		p.Error = clip(o.err)
	}
	if o.listed.CreatedAt > 0 {
		p.CreatedAt = time.Unix(0, int64(o.listed.CreatedAt)).UTC()
	}
	if o.status != nil {
		p.IPs, p.ObservedAt = clipList(o.status.IPs), shownTime(o.status.TimeStamp)
	}
	if labels {
		p.Labels, p.Annotations = clipMap(o.listed.Labels), clipMap(o.listed.Annotations)
	}
	return p
}

// summarize sets the state and the restarts of a pod from its other fields.
func (p *pod) summarize() {
	p.Restarts = 0
	var crashed, running, ended, present int
	seen := make(map[string]bool)
	for _, l := range p.Containers {
		newest := !seen[l.Name]
		seen[l.Name] = true
		if !newest || l.Gone > 0 {
			continue
		}
		present++
		p.Restarts += l.Restarts
		switch {
		case l.State == pleg.ContainerStateRunning:
			running++
		case l.State == pleg.ContainerStateExited && l.ExitCode != nil && *l.ExitCode != 0:
			crashed++
		case l.State == pleg.ContainerStateExited:
			ended++
		}
	}
	ready := len(p.Sandboxes) == 0 || p.Sandboxes[0].State != pleg.ContainerStateExited
	switch {
	case p.Gone > 0:
		p.State = podRemoved
	case !p.StuckSince.IsZero():
		p.State = podStuck
	case p.Error != "":
		p.State = podFailing
	case !ready:
		p.State = podStopped
	case crashed > 0:
		p.State = podCrashed
	case running > 0:
		p.State = podRunning
	case present > 0 && ended == present:
		p.State = podCompleted
	default:
		p.State = podStarting
	}
}
