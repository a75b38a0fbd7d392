package plegz

import (
	"cmp"
	"time"

	"github.com/kubepleg/pleg"
)

// podState is the state of a pod in one word.
type podState string

const (
	podStuck     podState = "stuck"     // an inspection of the pod does not return
	podFailing   podState = "failing"   // the last inspection failed, and the pod is neither crashed nor completed
	podCrashed   podState = "crashed"   // a container exited with an error and was not restarted
	podStarting  podState = "starting"  // no container runs yet
	podRunning   podState = "running"   // at least one container runs
	podCompleted podState = "completed" // every container has exited with code 0
	podUnknown   podState = "unknown"   // every container has exited, and no error is known, but a code is not
	podStopped   podState = "stopped"   // the sandbox is not ready
	podRemoved   podState = "removed"   // the pod is no longer listed
)

// pod is a pod in JSON form. doc.go describes the fields.
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

// life describes one container or sandbox, from its creation to its removal.
type life struct {
	ID         string     `json:"id"`
	Name       string     `json:"name,omitempty"`
	State      pleg.State `json:"state"`
	CreatedAt  time.Time  `json:"createdAt,omitzero"`
	StartedAt  time.Time  `json:"startedAt,omitzero"`
	FinishedAt time.Time  `json:"finishedAt,omitzero"`
	RemovedAt  time.Time  `json:"removedAt,omitzero"`
	ExitCode   *int       `json:"exitCode,omitempty"`
	// Unconfirmed is true if an exit event reported the exit, but the runtime's status does not
	// show it yet.
	Unconfirmed bool   `json:"unconfirmed,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Message     string `json:"message,omitempty"`
	Restarts    int    `json:"restartCount,omitempty"`
	Image       string `json:"image,omitempty"`
	Gone        uint64 `json:"gone,omitempty"`

	sandbox   bool
	place     int  // position in the runtime's list
	forgotten bool // true if the runtime does not know the end
}

// stateRemoved is the state of a container that is no longer listed.
const stateRemoved pleg.State = "removed"

// observed contains the generator's data about a pod.
type observed struct {
	listed  *pleg.Pod
	status  *pleg.PodStatus // nil before the first status
	failing pleg.FailingPod // zero if the pod's inspection is neither stuck nor failing
	err     string          // the error of the last inspection
}

// lives returns the listed containers and sandboxes by ID. ended contains the exit times of
// containers whose status contains none.
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

// newLife describes a listed container. It takes the state from the list and the times from the
// status, which may be nil. If the status contains no time of the exit, newLife uses ended.
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

// add adds the fields of a status.
func (l *life) add(s *pleg.Status) {
	l.Restarts = s.RestartCount
	if created := shownTime(s.CreatedAt); !created.IsZero() {
		l.CreatedAt = created
	}
	l.StartedAt = shownTime(s.StartedAt)
	if s.State == pleg.ContainerStateExited {
		l.FinishedAt, l.Unconfirmed, l.forgotten = shownTime(s.FinishedAt), s.Unconfirmed, s.EndUnknown
		l.Reason, l.Message = clip(s.Reason), clip(s.Message)
		if !s.EndUnknown {
			l.ExitCode = &s.ExitCode
		}
	}
}

// recall adds the end from the events of an earlier agent, if the runtime has forgotten it.
func (l *life) recall(ends map[string]Event) {
	if end, known := ends[l.ID]; known && l.forgotten && end.IsEndOf(l.StartedAt) {
		l.ExitCode, l.Reason, l.FinishedAt = end.ExitCode, clip(end.Reason), cmp.Or(end.FinishedAt, l.FinishedAt)
		l.Message = "The runtime has forgotten this end. It comes from the history."
	}
}

// view returns a pod in JSON form, without the fields that only the history knows.
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

// summarize computes the state and the restarts of a pod from its other fields.
func (p *pod) summarize() {
	p.Restarts = 0
	var crashed, running, succeeded, unknown, present int
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
		case l.State != pleg.ContainerStateExited: // created, or in an unknown state
		case l.ExitCode == nil:
			unknown++
		case *l.ExitCode == 0:
			succeeded++
		default:
			crashed++
		}
	}
	completed := present > 0 && succeeded == present
	ready := len(p.Sandboxes) == 0 || p.Sandboxes[0].State != pleg.ContainerStateExited
	switch {
	case p.Gone > 0:
		p.State = podRemoved
	case !p.StuckSince.IsZero():
		p.State = podStuck
	case p.Error != "" && crashed == 0 && !completed:
		p.State = podFailing
	case !ready:
		p.State = podStopped
	case crashed > 0:
		p.State = podCrashed
	case running > 0:
		p.State = podRunning
	case completed:
		p.State = podCompleted
	case present > 0 && succeeded+unknown == present:
		p.State = podUnknown
	default:
		p.State = podStarting
	}
}
