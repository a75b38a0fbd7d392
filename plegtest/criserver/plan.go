package criserver

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// RestartPolicy decides whether a container of a plan is restarted when it ends.
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
	firstBackOff   = 10 * time.Second
	longestBackOff = 5 * time.Minute
)

// PodPlan is the life of a pod: when it starts, what its containers do, and when it is
// removed.
type PodPlan struct {
	PodConfig

	// StartAfter is how long after Play the pod starts.
	StartAfter time.Duration
	// Containers are the plans of its containers.
	Containers []ContainerPlan
	// LiveFor is how long after its start the sandbox is stopped, and its containers
	// killed; 0 is never.
	LiveFor time.Duration
	// LingerFor is how long the stopped pod stays before it is removed.
	LingerFor time.Duration
	// ReturnAfter is how long after its removal the pod starts again, with the same name
	// and a new UID; 0 is never.
	ReturnAfter time.Duration
	// Jitter lengthens every duration of the plan by a random fraction, up to this one: with 0.2,
	// 10 s become 10 s to 12 s.
	Jitter float64
}

// ContainerPlan is the life of a container.
type ContainerPlan struct {
	ContainerConfig

	// StartAfter is how long after the start of its pod the container is created and
	// started.
	StartAfter time.Duration
	// RunFor is how long the container runs before it exits by itself; 0 is unlimited.
	RunFor time.Duration
	// ExitCode and Reason are those of the exit; see [Server.ExitContainer].
	ExitCode int32
	Reason   string
	// Restart decides whether the container is restarted. As in the kubelet, only the last earlier
	// instance is kept.
	Restart RestartPolicy
	// Restarts is the maximum number of restarts; 0 is unlimited.
	Restarts int
	// BackOff is the delay before the first restart; 0 is 10 s, as in the
	// kubelet. The delay doubles with each restart.
	BackOff time.Duration
	// MaxBackOff is the longest delay; 0 is 5 minutes.
	MaxBackOff time.Duration
}

// Play runs pods by their plans until the server stops. It may be called more than once.
// If the server has a fake clock, step it and call Settle.
//
// With the same seed, the plans of a call always run the same way. To keep further calls and
// operations of the test reproducible, call Settle before each.
func (s *Server) Play(plans ...PodPlan) {
	now := s.cfg.clock.Now()
	entries := make([]entry, len(plans))
	for i, plan := range plans {
		plan.Containers = slices.Clone(plan.Containers)
		if plan.Name == "" {
			plan.Name = s.node.newPodName() // the pod keeps it when it starts again
		}
		entries[i] = entry{
			at: now.Add(s.jittered(&plan, plan.StartAfter)),
			do: func(at time.Time) { s.startPod(&plan, plan.UID, at) },
		}
	}
	s.timetable.enter(entries...)
}

// Settle returns when every step of the plans that is due by the clock is done. Like the server's
// operations, it may block.
func (s *Server) Settle() {
	s.timetable.settle()
}

// jittered returns a duration of a plan with its jitter.
func (s *Server) jittered(plan *PodPlan, d time.Duration) time.Duration {
	if plan.Jitter <= 0 || d <= 0 {
		return d
	}
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return d + time.Duration(s.node.rand.Float64()*plan.Jitter*float64(d))
}

func (s *Server) startPod(plan *PodPlan, uid types.UID, at time.Time) {
	config := plan.PodConfig
	config.UID = uid
	sandboxID := s.RunPod(config)
	for i := range plan.Containers {
		r := &containerRun{s: s, pod: plan, plan: &plan.Containers[i], sandboxID: sandboxID}
		s.timetable.at(at.Add(s.jittered(plan, r.plan.StartAfter)), r.start)
	}
	if plan.LiveFor > 0 {
		s.timetable.at(at.Add(s.jittered(plan, plan.LiveFor)),
			func(at time.Time) { s.endPod(plan, sandboxID, at) })
	}
}

func (s *Server) endPod(plan *PodPlan, sandboxID string, at time.Time) {
	_ = s.StopPodSandbox(sandboxID) // the test may have removed it
	s.timetable.at(at.Add(s.jittered(plan, plan.LingerFor)), func(at time.Time) {
		_ = s.RemovePodSandbox(sandboxID) // never fails
		if plan.ReturnAfter > 0 {
			s.timetable.at(at.Add(s.jittered(plan, plan.ReturnAfter)),
				func(at time.Time) { s.startPod(plan, "", at) })
		}
	})
}

// containerRun is a container of a playing pod, through its restarts.
type containerRun struct {
	s         *Server
	pod       *PodPlan
	plan      *ContainerPlan
	sandboxID string
	restarts  int
	backOff   time.Duration
	last      string // the ID of the previous instance
}

func (r *containerRun) start(at time.Time) {
	id, err := r.s.RunContainer(r.sandboxID, r.plan.ContainerConfig)
	if err != nil {
		return // the pod is gone
	}
	if r.plan.RunFor > 0 {
		r.s.timetable.at(at.Add(r.s.jittered(r.pod, r.plan.RunFor)), func(at time.Time) { r.exit(id, at) })
	}
}

func (r *containerRun) exit(id string, at time.Time) {
	if err := r.s.ExitContainer(id, r.plan.ExitCode, r.plan.Reason); err != nil {
		return // the test, or the end of the pod, killed it
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

// again reports whether the container that has just exited is restarted.
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
		first = firstBackOff
	}
	if longest <= 0 {
		longest = longestBackOff
	}
	if r.backOff == 0 {
		r.backOff = first
	} else {
		r.backOff *= 2
	}
	r.backOff = min(r.backOff, longest)
	return r.backOff
}
