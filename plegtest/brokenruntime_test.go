package plegtest_test

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// canceling is a fake runtime. If the context has ended, its GetPods returns an error that does not
// wrap the context's error.
type canceling struct{ *plegtest.Runtime }

func (r canceling) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	if ctx.Err() != nil {
		return nil, errors.New("transport: context over")
	}
	return r.Runtime.GetPods(ctx, all)
}

// broken is a fake runtime in which a test can replace methods.
type broken struct {
	*plegtest.Runtime
	getPods func(ctx context.Context, all bool) ([]*pleg.Pod, error)
	status  func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error)
	getPod  func(ctx context.Context, uid types.UID) (*pleg.Pod, error)
	watch   func(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error
	// watchExits replaces WatchContainerExits.
	watchExits func(connected func()) error
	// If silent is true, DescribeRuntime returns "". calls is the result of CallsInFlight. The zero
	// values are valid for a runtime.
	silent bool
	calls  []pleg.RuntimeCall
}

func (b *broken) DescribeRuntime() string {
	if b.silent {
		return ""
	}
	return "a broken runtime"
}

func (b *broken) CallsInFlight() ([]pleg.RuntimeCall, time.Time) { return b.calls, time.Time{} }

func (b *broken) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	if b.getPods != nil {
		return b.getPods(ctx, all)
	}
	return b.Runtime.GetPods(ctx, all)
}

func (b *broken) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if b.status != nil {
		return b.status(ctx, pod)
	}
	return b.Runtime.GetPodStatus(ctx, pod)
}

func (b *broken) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	if b.getPod != nil {
		return b.getPod(ctx, uid)
	}
	return b.Runtime.GetPod(ctx, uid)
}

func (b *broken) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	if b.watch != nil {
		return b.watch(ctx, connected, observe)
	}
	return b.Runtime.WatchContainerEvents(ctx, connected, observe)
}

func (b *broken) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	if b.watchExits != nil {
		return b.watchExits(connected)
	}
	return b.Runtime.WatchContainerExits(ctx, connected, observe)
}

// pods returns a function that edits the pods of a broken runtime.
func pods(edit func(list []*pleg.Pod) []*pleg.Pod) func(b *broken) {
	return func(b *broken) {
		list, _ := b.Runtime.GetPods(context.Background(), true)
		var own []*pleg.Pod
		for _, pod := range list {
			b.UpdatePod(pod.ID, func(pod *pleg.Pod) { own = append(own, pod) })
		}
		b.SetPods(edit(own)...)
	}
}

// editStatus returns a function that makes a broken runtime edit each pod's status.
func editStatus(edit func(s *pleg.PodStatus)) func(b *broken) {
	return func(b *broken) {
		b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
			s, err := b.Runtime.GetPodStatus(ctx, pod)
			if err == nil && len(s.SandboxStatuses) > 0 {
				edit(s)
			}
			return s, err
		}
	}
}

// label adds labels and annotations to the pod "a", and labels to its containers. All contain the
// secret.
func label(b *broken) {
	b.UpdatePod("a", func(pod *pleg.Pod) {
		pod.Labels, pod.Annotations = map[string]string{"of": secret}, map[string]string{"of": secret}
		for _, c := range pod.Containers {
			c.Labels = map[string]string{"of": secret}
		}
	})
}

// secret must not appear in the text of a problem.
const secret = "hunter2"

// relabel returns a function that labels the pod "a" and makes GetPod return an edited copy of the
// pod.
func relabel(edit func(pod *pleg.Pod)) func(b *broken) {
	return func(b *broken) {
		label(b)
		own := plegtest.NewRuntime()
		own.SetPod(b.Pod("a"))
		own.UpdatePod("a", edit)
		b.getPod = func(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
			if uid == "a" {
				return own.Pod("a"), nil
			}
			return b.Runtime.GetPod(ctx, uid)
		}
	}
}
