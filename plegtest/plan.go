package plegtest

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// RestartPolicy says which containers of a plan are restarted when they end.
type RestartPolicy string

// The restart policies, as in a pod's specification.
const (
	// RestartNever is the default.
	RestartNever     RestartPolicy = "Never"
	RestartOnFailure RestartPolicy = "OnFailure"
	RestartAlways    RestartPolicy = "Always"
)

// The kubelet's back-off between restarts.
const (
	// DefaultBackOff is the first one.
	DefaultBackOff = 10 * time.Second
	// DefaultMaxBackOff is where doubling ends.
	DefaultMaxBackOff = 5 * time.Minute
)

// PodPlan is the life of a pod: when it comes, what its containers do, when it
// goes.
type PodPlan struct {
	PodConfig

	// StartAfter is when the pod comes, from Play on.
	StartAfter time.Duration
	// Containers are the plans of its containers.
	Containers []ContainerPlan
	// LiveFor is how long after its start the sandbox is stopped and what runs in
	// it killed; 0 is never.
	LiveFor time.Duration
	// LingerFor is how long the stopped pod stays before it is removed.
	LingerFor time.Duration
	// ReturnAfter is how long after its removal the pod comes again, under the same
	// name and a new UID; 0 is never.
	ReturnAfter time.Duration
	// Jitter lengthens every duration of the plan by a random share of itself, up
	// to this one: 0.2 makes 10 s last from 10 s to 12 s.
	Jitter float64
}

// ContainerPlan is the life of a container.
type ContainerPlan struct {
	ContainerConfig

	// StartAfter is when the container is created and started, from the start of
	// its pod on.
	StartAfter time.Duration
	// RunFor is how long it runs before it ends by itself; 0 is for ever.
	RunFor time.Duration
	// ExitCode and Reason are how it ends; see [CRIServer.ExitContainer].
	ExitCode int32
	Reason   string
	// Restart says whether it is restarted when it has ended. Of the instances
	// before, only the last is kept, as the kubelet does.
	Restart RestartPolicy
	// Restarts is how often it is restarted at most; 0 is without end.
	Restarts int
	// BackOff is the wait before the first restart; 0 is DefaultBackOff. Each
	// wait is twice the one before.
	BackOff time.Duration
	// MaxBackOff is the longest wait; 0 is DefaultMaxBackOff.
	MaxBackOff time.Duration
}

// Play makes pods live by their plans, until the server stops. It may be called
// more than once. When the server's clock is a fake one, step it and call Settle.
//
// The plans of one call play the same every time, given the seed. When it is
// called again, or the test operates the server too, it is for the caller to
// Settle before.
func (s *CRIServer) Play(plans ...PodPlan) {
	now := s.cfg.clock.Now()
	entries := make([]entry, len(plans))
	for i, plan := range plans {
		plan.Containers = slices.Clone(plan.Containers)
		if plan.Name == "" {
			plan.Name = s.node.newPodName() // for the pod to keep when it returns
		}
		entries[i] = entry{
			at: now.Add(s.jittered(&plan, plan.StartAfter)),
			do: func(at time.Time) { s.startPod(&plan, plan.UID, at) },
		}
	}
	s.timetable.enter(entries...)
}

// Settle returns when all that the plans have due by the clock's present time is
// done. It may block as the operations of the server do.
func (s *CRIServer) Settle() {
	s.timetable.settle()
}

// jittered returns a duration of a plan with its jitter.
func (s *CRIServer) jittered(plan *PodPlan, d time.Duration) time.Duration {
	if plan.Jitter <= 0 || d <= 0 {
		return d
	}
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return d + time.Duration(s.node.rand.Float64()*plan.Jitter*float64(d))
}

func (s *CRIServer) startPod(plan *PodPlan, uid types.UID, at time.Time) {
	config := plan.PodConfig
	config.UID = uid
	sandboxID := s.RunPod(config)
	for i := range plan.Containers {
		r := &containerRun{s: s, pod: plan, plan: &plan.Containers[i], sandboxID: sandboxID}
		s.timetable.at(at.Add(s.jittered(plan, r.plan.StartAfter)), r.start)
	}
	if plan.LiveFor > 0 {
		s.timetable.at(at.Add(s.jittered(plan, plan.LiveFor)), func(at time.Time) { s.endPod(plan, sandboxID, at) })
	}
}

func (s *CRIServer) endPod(plan *PodPlan, sandboxID string, at time.Time) {
	_ = s.StopPodSandbox(sandboxID) // the test may have removed it
	s.timetable.at(at.Add(s.jittered(plan, plan.LingerFor)), func(at time.Time) {
		_ = s.RemovePodSandbox(sandboxID) // never fails
		if plan.ReturnAfter > 0 {
			s.timetable.at(at.Add(s.jittered(plan, plan.ReturnAfter)), func(at time.Time) { s.startPod(plan, "", at) })
		}
	})
}

// containerRun is a container of a playing pod, through its restarts.
type containerRun struct {
	s         *CRIServer
	pod       *PodPlan
	plan      *ContainerPlan
	sandboxID string
	restarts  int
	backOff   time.Duration
	last      string // the ID of the instance before
}

func (r *containerRun) start(at time.Time) {
	id, err := r.s.RunContainer(r.sandboxID, r.plan.ContainerConfig)
	if err != nil {
		return // the pod has gone
	}
	if r.plan.RunFor > 0 {
		r.s.timetable.at(at.Add(r.s.jittered(r.pod, r.plan.RunFor)), func(at time.Time) { r.exit(id, at) })
	}
}

func (r *containerRun) exit(id string, at time.Time) {
	if err := r.s.ExitContainer(id, r.plan.ExitCode, r.plan.Reason); err != nil {
		return // the test, or the end of the pod, has killed it
	}
	if r.last != "" {
		_ = r.s.RemoveContainer(r.last) // never fails
	}
	r.last = id
	if !r.again() {
		return
	}
	r.restarts++
	r.s.timetable.at(at.Add(r.s.jittered(r.pod, r.nextBackOff())), r.start)
}

// again tells whether the container that has just ended is restarted.
func (r *containerRun) again() bool {
	if r.plan.Restarts > 0 && r.restarts >= r.plan.Restarts {
		return false
	}
	switch r.plan.Restart {
	case RestartAlways:
		return true
	case RestartOnFailure:
		return r.plan.ExitCode != 0
	case RestartNever:
	}
	return false
}

func (r *containerRun) nextBackOff() time.Duration {
	first, longest := r.plan.BackOff, r.plan.MaxBackOff
	if first <= 0 {
		first = DefaultBackOff
	}
	if longest <= 0 {
		longest = DefaultMaxBackOff
	}
	if r.backOff == 0 {
		r.backOff = first
	} else {
		r.backOff *= 2
	}
	r.backOff = min(r.backOff, longest)
	return r.backOff
}
