package timetable

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// Forever is a value for ContainerPlan.Restarts: the container is always restarted.
const Forever = -1

// PodPlan is the life of a pod: when it starts, what its containers do, and when it is
// removed.
type PodPlan struct {
	criserver.PodConfig

	// StartAfter is the time from the call of Play to the pod's start.
	StartAfter time.Duration
	// Containers are the plans of the pod's containers.
	Containers []ContainerPlan
	// LiveFor is the time from the pod's start until its sandbox is stopped and its containers are
	// killed; 0 means never.
	LiveFor time.Duration
	// LingerFor is the time from the stop of the pod until its removal.
	LingerFor time.Duration
	// ReturnAfter is the time from the pod's removal until the pod starts again, with the same name
	// and a new UID; 0 means never.
	ReturnAfter time.Duration
}

// ContainerPlan is the life of a container.
type ContainerPlan struct {
	criserver.ContainerConfig

	// StartAfter is the time from the pod's start until the container is created and started.
	StartAfter time.Duration
	// RunFor is how long the container runs before it exits by itself; 0 means for ever.
	RunFor time.Duration
	// ExitCode and Reason describe the exit; see [criserver.Server.ExitContainer].
	ExitCode int
	Reason   string
	// Restarts is the number of restarts after the container has exited by itself. Of the instances
	// that have exited, only the newest is kept, as in the kubelet.
	Restarts int
	// BackOff is the delay before the first restart. The delay doubles with each restart.
	BackOff time.Duration
	// MaxBackOff is the longest delay; 0 means 5 minutes.
	MaxBackOff time.Duration
}

// Play adds pods, which run by their plans until Stop.
func (t *Timetable) Play(plans ...PodPlan) {
	now := t.clock.Now()
	entries := make([]entry, len(plans))
	for i, plan := range plans {
		entries[i] = entry{
			at: now.Add(plan.StartAfter),
			do: func(at time.Time) { t.startPod(&plan, plan.UID, at) },
		}
	}
	t.enter(entries...)
}

func (t *Timetable) startPod(plan *PodPlan, uid types.UID, at time.Time) {
	config := plan.PodConfig
	config.UID = uid
	sandboxID := t.server.RunPod(config)
	for i := range plan.Containers {
		r := &containerRun{t: t, plan: &plan.Containers[i], sandboxID: sandboxID}
		t.at(at.Add(r.plan.StartAfter), r.start)
	}
	if plan.LiveFor > 0 {
		t.at(at.Add(plan.LiveFor), func(at time.Time) { t.endPod(plan, sandboxID, at) })
	}
}

func (t *Timetable) endPod(plan *PodPlan, sandboxID string, at time.Time) {
	_ = t.server.StopPodSandbox(sandboxID) // the test may have removed it
	t.at(at.Add(plan.LingerFor), func(at time.Time) {
		_ = t.server.RemovePodSandbox(sandboxID) // never fails
		if plan.ReturnAfter > 0 {
			t.at(at.Add(plan.ReturnAfter), func(at time.Time) { t.startPod(plan, "", at) })
		}
	})
}

// containerRun is one container of a running pod, with its restarts.
type containerRun struct {
	t         *Timetable
	plan      *ContainerPlan
	sandboxID string
	restarts  int
	backOff   time.Duration
	last      string // the ID of the previous instance
}

func (r *containerRun) start(at time.Time) {
	id, err := r.t.server.RunContainer(r.sandboxID, r.plan.ContainerConfig)
	if err != nil {
		return // the pod no longer exists
	}
	if r.plan.RunFor > 0 {
		r.t.at(at.Add(r.plan.RunFor), func(at time.Time) { r.exit(id, at) })
	}
}

func (r *containerRun) exit(id string, at time.Time) {
	if err := r.t.server.ExitContainer(id, r.plan.ExitCode, r.plan.Reason); err != nil {
		return // the test or the end of the pod killed the container
	}
	if r.last != "" {
		_ = r.t.server.RemoveContainer(r.last) // never fails
	}
	r.last = id
	if r.restarts == r.plan.Restarts {
		return
	}
	r.restarts++
	r.backOff = min(cmp.Or(2*r.backOff, r.plan.BackOff), cmp.Or(r.plan.MaxBackOff, 5*time.Minute))
	r.t.at(at.Add(r.backOff), r.start)
}
