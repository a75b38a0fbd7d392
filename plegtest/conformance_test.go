package plegtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// aNode returns a fake runtime with three pods. Pod c was restarted in a new sandbox.
func aNode() *plegtest.Runtime {
	rt := plegtest.NewRuntime()
	rt.SetPod(plegtest.NewPod("a", plegtest.Exited("a1"), plegtest.Running("a2")))
	rt.SetPod(plegtest.NewPod("b", plegtest.Created("b1"), plegtest.Unknown("b2")))
	rt.SetPod(plegtest.NewPod("c", plegtest.Exited("c1")))
	rt.SetSandbox("c", "c-sandbox", pleg.ContainerStateExited)
	rt.SetSandbox("c", "c-sandbox-1", pleg.ContainerStateRunning)
	rt.SetContainer("c", "c2", pleg.ContainerStateRunning)
	return rt
}

func TestTestRuntimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, rt := range map[string]pleg.Runtime{
			"the fake":        aNode(),
			"the plain fake":  aNode().Plain(),
			"an empty one":    plegtest.NewRuntime(),
			"one that errors": canceling{aNode()},
		} {
			var expected []types.UID
			if name != "an empty one" {
				expected = []types.UID{"a", "b", "c"}
			}
			if err := plegtest.TestRuntime(rt, expected...); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		noSandboxes := &broken{Runtime: aNode()}
		editStatus(func(s *pleg.PodStatus) { s.SandboxStatuses = nil })(noSandboxes)
		if err := plegtest.TestRuntime(noSandboxes); err != nil {
			t.Errorf("statuses without sandboxes: %v", err)
		}
		rt := aNode()
		rt.SetEventMode(plegtest.EventsUnsupported)
		if err := plegtest.TestRuntime(rt); err != nil {
			t.Error(err)
		}
		for what, watch := range map[string]func(connected func()) error{
			"refuses after connected":  func(connected func()) error { connected(); return pleg.ErrEventsUnsupported },
			"cannot be reached":        func(func()) error { return errors.New("connection refused") },
			"says that it has no more": func(func()) error { return fmt.Errorf("off: %w", pleg.ErrEventsUnsupported) },
		} {
			b := &broken{Runtime: aNode()}
			b.watch = func(_ context.Context, connected func(), _ func(pleg.ContainerEvent)) error { return watch(connected) }
			if err := plegtest.TestRuntime(b); err != nil {
				t.Errorf("a stream that %s: %v", what, err)
			}
		}
	})
}

// TestRuntime ignores Source: a runtime may set it to any value, and to a different value each
// time.
func TestTestRuntimePassesAnySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := func() any { return func() {} } // a func is not even DeepEqual to itself
		rt := aNode()
		defer rt.BreakEventStreams(nil)
		b := &broken{Runtime: rt}
		b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
			list, err := rt.GetPods(ctx, all)
			var own []*pleg.Pod
			for _, pod := range list {
				p := *pod
				p.Source = source()
				p.Containers = nil
				for _, c := range pod.Containers {
					own := *c
					own.Source = source()
					p.Containers = append(p.Containers, &own)
				}
				own = append(own, &p)
			}
			return own, err
		}
		b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
			s, err := rt.GetPodStatus(ctx, pod)
			if err == nil {
				s.Source = source()
				for _, c := range s.ContainerStatuses {
					c.Source = source()
				}
			}
			return s, err
		}
		if err := plegtest.TestRuntime(b, "a", "b", "c"); err != nil {
			t.Error(err)
		}
	})
}

// TestRuntime accepts a StartedAt shortly after FinishedAt. containerd sets StartedAt only when the
// start has returned. A container that exits at once may finish earlier.
func TestTestRuntimePassesExitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &broken{Runtime: aNode()}
		defer b.BreakEventStreams(nil)
		editStatus(func(s *pleg.PodStatus) {
			for _, c := range s.ContainerStatuses {
				if c.State == pleg.ContainerStateExited {
					c.StartedAt = c.FinishedAt.Add(100 * time.Millisecond)
				}
			}
		})(b)
		if err := plegtest.TestRuntime(b, "a", "b", "c"); err != nil {
			t.Error(err)
		}
	})
}

// TestRuntime accepts a container whose time is earlier than its predecessor's. This happens if the
// clock was set back.
func TestTestRuntimePassesClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := aNode()
		defer rt.BreakEventStreams(nil)
		pod := plegtest.NewPod("a", plegtest.Running("a2"), plegtest.Running("b"), plegtest.Exited("a1"))
		for i, c := range pod.Containers {
			c.CreatedAt = int64(10 + i)
		}
		pod.Containers[0].Name, pod.Containers[2].Name, pod.Containers[0].Attempt = "app", "app", 1
		rt.SetPod(pod)
		if err := plegtest.TestRuntime(rt, "a", "b", "c"); err != nil {
			t.Error(err)
		}
	})
}

// TestRuntime treats an empty map and a nil map as equal.
func TestTestRuntimePassesEmptyLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &broken{Runtime: aNode()}
		defer b.BreakEventStreams(nil)
		relabel(func(p *pleg.Pod) { p.Containers[0].Annotations = map[string]string{} })(b)
		if err := plegtest.TestRuntime(b, "a", "b", "c"); err != nil {
			t.Error(err)
		}
	})
}

// Each of these runtimes is broken in one way. TestRuntime must report the problem.
func TestTestRuntimeFinds(t *testing.T) {
	oops := errors.New("oops")
	var calls atomic.Int32 // calls of the runtime under test
	for _, tc := range []struct {
		name     string
		breaks   func(b *broken)
		expected types.UID
		want     string
	}{
		{"no list", func(b *broken) { b.Fail(plegtest.GetPods, "", oops) }, "",
			`GetPods(all=true): expected no error, saw error "oops"`},
		{"a stuck list", func(b *broken) { b.BlockIgnoringCancel(plegtest.GetPods, "") }, "",
			`GetPods with a canceled context: expected an answer within 5s, saw none`},
		{"a panicking list", func(b *broken) {
			b.getPods = func(context.Context, bool) ([]*pleg.Pod, error) { panic("oops") }
		}, "", "saw panic: oops"},
		{"a list that ends its goroutine", func(b *broken) {
			b.getPods = func(context.Context, bool) ([]*pleg.Pod, error) {
				runtime.Goexit()
				return nil, nil
			}
		}, "", "saw panic: the goroutine was ended"},
		{"an expected pod is missing", func(*broken) {}, "d", `expected pod "d" in the list`},
		{"a nil pod", pods(func(l []*pleg.Pod) []*pleg.Pod { return append(l, nil) }), "",
			"a nil one at index 3"},
		{"a pod without UID", pods(func(l []*pleg.Pod) []*pleg.Pod { l[1].ID = ""; return l }), "",
			"expected a UID for every pod, saw none for pod default/b"},
		{"a duplicate UID", pods(func(l []*pleg.Pod) []*pleg.Pod { return append(l, plegtest.NewPod("a")) }),
			"", `expected each UID once, saw "a" again`},
		{"a nil container", pods(func(l []*pleg.Pod) []*pleg.Pod { l[0].Containers[1] = nil; return l }), "",
			`pod "a": expected containers, saw a nil one`},
		{"a nil sandbox", pods(func(l []*pleg.Pod) []*pleg.Pod { l[0].Sandboxes[0] = nil; return l }), "",
			`pod "a": expected containers, saw a nil one`},
		{"a container without ID", pods(func(l []*pleg.Pod) []*pleg.Pod {
			l[0].Containers[1].ID.ID = ""
			return l
		}), "", `saw none for container "a2"`},
		{"a shared container ID", pods(func(l []*pleg.Pod) []*pleg.Pod {
			l[1].Containers[0].ID.ID = "a1"
			return l
		}), "", `saw a1, which is in pod "a" too`},
		{"an unknown state", pods(func(l []*pleg.Pod) []*pleg.Pod {
			l[0].Containers[0].State = "dead"
			return l
		}), "", `saw "dead" for a1`},
		{"sandboxes oldest first", pods(func(l []*pleg.Pod) []*pleg.Pod {
			s := l[2].Sandboxes
			s[0], s[1] = s[1], s[0]
			return l
		}), "", "saw c-sandbox-1 after c-sandbox, which is older"},
		{"containers oldest first", pods(func(l []*pleg.Pod) []*pleg.Pod {
			l[0].Containers[0].CreatedAt, l[0].Containers[1].CreatedAt = 10, 20
			return l
		}), "", `pod "a": expected the containers newest first, saw a2 after a1, which is older`},
		{"sandboxes by time, and not by attempt", pods(func(l []*pleg.Pod) []*pleg.Pod {
			for i, sb := range l[2].Sandboxes {
				sb.Attempt = uint32(i)
			}
			return l
		}), "", "saw c-sandbox after c-sandbox-1, which is older"},
		{"containers of a name by time, and not by attempt", pods(func(l []*pleg.Pod) []*pleg.Pod {
			for i, c := range l[0].Containers {
				c.Name, c.CreatedAt, c.Attempt = "app", int64(20-10*i), uint32(i)
			}
			return l
		}), "", `pod "a": expected the containers newest first, saw a2 after a1, which is older`},
		{"containers of a name oldest first", pods(func(l []*pleg.Pod) []*pleg.Pod {
			for i, c := range l[0].Containers {
				c.Name, c.CreatedAt = "app", int64(10+10*i)
			}
			return l
		}), "", `pod "a": expected the containers newest first, saw a2 after a1, which is older`},
		{"random order", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				l, err := b.Runtime.GetPods(ctx, all)
				if n := calls.Add(1); err == nil && len(l) == 3 {
					l = []*pleg.Pod{l[n%3], l[(n+1)%3], l[(n+2)%3]}
				}
				return l, err
			}
		}, "", "expected the pods in the same order, saw another order"},
		{"pods that come and go", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				b.SetPod(plegtest.NewPod(types.UID(fmt.Sprint("d", b.Calls(plegtest.GetPods)))))
				return b.Runtime.GetPods(ctx, all)
			}
		}, "", "expected the same 4 pods, saw 5, not all the same"},
		{"pods that change", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				b.UpdatePod("a", func(pod *pleg.Pod) { pod.Name += "!" })
				return b.Runtime.GetPods(ctx, all)
			}
		}, "", "expected the same pod as before, saw Name a!! instead of a!"},
		{"containers in random order", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				b.UpdatePod("a", func(pod *pleg.Pod) {
					c := pod.Containers
					c[0], c[1] = c[1], c[0]
				})
				return b.Runtime.GetPods(ctx, all)
			}
		}, "", "expected the same pod as before, saw Containers"},
		{"exited containers among what runs", func(b *broken) {
			b.getPods = func(ctx context.Context, _ bool) ([]*pleg.Pod, error) {
				return b.Runtime.GetPods(ctx, true)
			}
		}, "", "expected no exited containers and sandboxes, saw a1, exited"},
		{"nothing runs", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				if !all {
					return nil, nil
				}
				return b.Runtime.GetPods(ctx, true)
			}
		}, "", `GetPods(all=false): expected pod "a", which has a running container`},
		{"what runs is not in the full list", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				l, err := b.Runtime.GetPods(ctx, all)
				if !all {
					l = append(l, plegtest.NewPod("d"))
				}
				return l, err
			}
		}, "", "expected a pod that GetPods(all=true) lists too"},
		{"a partial list on cancellation", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				if ctx.Err() != nil {
					return nil, nil
				}
				return b.Runtime.GetPods(ctx, all)
			}
		}, "", "saw 0 of 3 pods and no error"},
		{"pods modified in place", func(b *broken) {
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				l, err := b.Runtime.GetPods(ctx, all)
				if calls.Add(1) == 2 {
					l[0].Containers[1].State = pleg.ContainerStateExited
				}
				return l, err
			}
		}, "", `expected a returned value to stay unmodified`},
		{"labels modified in place", func(b *broken) {
			label(b)
			b.getPods = func(ctx context.Context, all bool) ([]*pleg.Pod, error) {
				l, err := b.Runtime.GetPods(ctx, all)
				if calls.Add(1) == 2 {
					l[0].Containers[1].Labels["of"] = "other"
				}
				return l, err
			}
		}, "", `expected a returned value to stay unmodified`},
		{"no labels in the list of one pod", relabel(func(p *pleg.Pod) { p.Labels = nil }), "",
			"exited containers too, saw Labels (0) instead of (1)"},
		{"another label in the list of one pod", relabel(func(p *pleg.Pod) { p.Labels["of"] = "other" }), "",
			"exited containers too, saw other Labels:"},
		{"another annotation in the list of one pod", relabel(func(p *pleg.Pod) { p.Annotations["of"] = "other" }), "",
			"exited containers too, saw other Annotations:"},
		{"another label of a container in the list of one pod", relabel(func(p *pleg.Pod) {
			p.Containers[0].Labels["of"] = "other"
		}), "", "exited containers too, saw other labels or annotations of Containers:"},
		{"another attempt in the list of one pod", relabel(func(p *pleg.Pod) { p.Sandboxes[0].Attempt++ }), "",
			"exited containers too, saw Sandboxes"},

		{"no status", func(b *broken) { b.Fail(plegtest.GetPodStatus, "b", oops) }, "",
			`GetPodStatus(pod "b"): expected no error`},
		{"a nil status", func(b *broken) {
			b.status = func(context.Context, *pleg.Pod) (*pleg.PodStatus, error) { return nil, nil }
		}, "", "expected a status, saw nil and no error"},
		{"a stuck status", func(b *broken) { b.BlockIgnoringCancel(plegtest.GetPodStatus, "a") }, "",
			"GetPodStatus with a canceled context: expected an answer within 5s"},
		{"a status without the context", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				if ctx.Err() != nil {
					return &pleg.PodStatus{ID: pod.ID}, nil
				}
				return b.Runtime.GetPodStatus(ctx, pod)
			}
		}, "", "saw 0 of 2 containers and no error"},
		{"a status for what is gone", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				if b.Pod(pod.ID) == nil {
					return &pleg.PodStatus{ContainerStatuses: []*pleg.Status{{}}}, nil
				}
				return b.Runtime.GetPodStatus(ctx, pod)
			}
		}, "", "GetPodStatus of a pod that does not exist: " +
			"expected an error, or a status without containers, saw 1 containers"},
		{"a panic for what is gone", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				_ = b.Pod(pod.ID).Name
				return b.Runtime.GetPodStatus(ctx, pod)
			}
		}, "", "GetPodStatus of a pod that does not exist: expected no panic"},
		{"another pod's status", editStatus(func(s *pleg.PodStatus) { s.ID = "x" }), "",
			`expected ID "a", saw "x"`},
		{"another name", editStatus(func(s *pleg.PodStatus) { s.Namespace = "x" }), "", "saw x/a"},
		{"a nil container status", editStatus(func(s *pleg.PodStatus) { s.ContainerStatuses[0] = nil }), "",
			"expected container statuses, saw a nil one"},
		{"a status of no container", editStatus(func(s *pleg.PodStatus) { s.ContainerStatuses[0].ID.ID = "x" }),
			"", `saw one of "x", which is not`},
		{"a status in no state", editStatus(func(s *pleg.PodStatus) { s.ContainerStatuses[0].State = "dead" }),
			"", `saw "dead" for a1`},
		{"statuses out of order", editStatus(func(s *pleg.PodStatus) {
			c := s.ContainerStatuses
			c[0], c[len(c)-1] = c[len(c)-1], c[0]
		}), "", "expected the statuses of one time in the order of Pod.Containers"},
		{"another state", editStatus(func(s *pleg.PodStatus) {
			s.ContainerStatuses[0].State = pleg.ContainerStateRunning
		}), "", `as in the list, saw "a1" and running`},
		{"another type of ID", editStatus(func(s *pleg.PodStatus) { s.ContainerStatuses[0].ID.Type = "docker" }), "",
			`expected the container's ID as in the list, plegtest://a1, saw docker://a1`},
		{"an end before the start", editStatus(func(s *pleg.PodStatus) {
			for _, c := range s.ContainerStatuses {
				if c.State == pleg.ContainerStateExited {
					c.StartedAt, c.FinishedAt = c.FinishedAt.Add(time.Hour), c.StartedAt
				}
			}
		}), "", "expected FinishedAt of an exited container after its StartedAt, saw an earlier one for a1"},
		{"no end", editStatus(func(s *pleg.PodStatus) { s.ContainerStatuses[0].FinishedAt = time.Time{} }), "",
			"expected FinishedAt of an exited container"},
		{"an end that moves", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				s, err := b.Runtime.GetPodStatus(ctx, pod)
				for _, c := range s.ContainerStatuses {
					if c.State == pleg.ContainerStateExited {
						c.FinishedAt = c.FinishedAt.Add(time.Duration(calls.Add(1)))
					}
				}
				return s, err
			}
		}, "", "expected the same FinishedAt of an exited container each time, saw a different one for a1"},
		{"container statuses oldest first", editStatus(func(s *pleg.PodStatus) {
			for i, c := range s.ContainerStatuses {
				c.CreatedAt = time.Unix(int64(i+1), 0)
			}
		}), "", "expected the container statuses newest first, saw a2 after a1, which is older"},
		{"no status where one container is gone", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				if known := b.Pod(pod.ID); known != nil && len(pod.Containers) > len(known.Containers) {
					return nil, errors.New("no such container")
				}
				return b.Runtime.GetPodStatus(ctx, pod)
			}
		}, "", `GetPodStatus(pod "a") with a container that is gone since the list: expected no error, ` +
			`and a status without that container, saw error "no such container"`},
		{"a nil status where one container is gone", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				if known := b.Pod(pod.ID); known != nil && len(pod.Containers) > len(known.Containers) {
					return nil, nil
				}
				return b.Runtime.GetPodStatus(ctx, pod)
			}
		}, "", "and a status without that container, saw nil and no error"},
		{"a status of the container that is gone", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				s, err := b.Runtime.GetPodStatus(ctx, pod)
				if known := b.Pod(pod.ID); known != nil && len(pod.Containers) > len(known.Containers) {
					s.ContainerStatuses = append(s.ContainerStatuses, &pleg.Status{
						ID: pod.Containers[len(known.Containers)].ID, State: pleg.ContainerStateUnknown})
				}
				return s, err
			}
		}, "", "and a status without that container, saw a status of it"},
		{"no others where one container is gone", func(b *broken) {
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				s, err := b.Runtime.GetPodStatus(ctx, pod)
				if known := b.Pod(pod.ID); known != nil && len(pod.Containers) > len(known.Containers) {
					s.ContainerStatuses = nil
				}
				return s, err
			}
		}, "", "expected the statuses of the 2 others, saw 0"},
		{"a missing status", editStatus(func(s *pleg.PodStatus) {
			s.ContainerStatuses = s.ContainerStatuses[1:]
		}), "", "expected a status for each of the 2 listed containers, saw 1"},
		{"nothing is active", editStatus(func(s *pleg.PodStatus) { s.ActiveContainerStatuses = nil }), "",
			"expected ActiveContainerStatuses of the newest sandbox's containers if it is ready"},
		{"all is active", editStatus(func(s *pleg.PodStatus) {
			s.ActiveContainerStatuses = s.ContainerStatuses
		}), "", `["c2"], saw ["c2" "c1"]`},
		{"a nil sandbox status", editStatus(func(s *pleg.PodStatus) { s.SandboxStatuses[0] = nil }), "",
			"expected sandbox statuses, saw a nil one"},
		{"a status of no sandbox", editStatus(func(s *pleg.PodStatus) { s.SandboxStatuses[0].Id = "x" }), "",
			`expected statuses of the sandboxes that are listed, saw one of "x"`},
		{"sandbox statuses oldest first", editStatus(func(s *pleg.PodStatus) {
			slices.Reverse(s.SandboxStatuses)
		}), "", "expected the sandbox statuses newest first"},
		{"no address", editStatus(func(s *pleg.PodStatus) {
			s.SandboxStatuses[0].State = runtimeapi.PodSandboxState_SANDBOX_READY
			s.SandboxStatuses[0].Network = &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}
		}), "", "expected the newest sandbox's address 10.0.0.1 in IPs, saw []"},
		{"a missing sandbox status", editStatus(func(s *pleg.PodStatus) {
			s.SandboxStatuses = s.SandboxStatuses[1:]
		}), "", "expected a status for each of the 2 listed sandboxes, or none, saw 1"},
		{"statuses modified afterwards", func(b *broken) {
			var shared *runtimeapi.PodSandboxStatus
			b.status = func(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
				s, err := b.Runtime.GetPodStatus(ctx, pod)
				switch n := calls.Add(1); {
				case n == 1:
					shared = s.SandboxStatuses[0]
				case n == 2:
					shared.RuntimeHandler = "x"
				}
				return s, err
			}
		}, "", `GetPodStatus(pod "a"): expected a returned value to stay unmodified`},

		{"no single pod", func(b *broken) { b.Fail(plegtest.GetPod, "a", oops) }, "",
			`GetPod("a"): expected the pod, which GetPods lists, saw error "oops"`},
		{"a nil single pod", func(b *broken) {
			b.getPod = func(context.Context, types.UID) (*pleg.Pod, error) { return nil, nil }
		}, "", "expected an error that wraps ErrPodNotFound, saw nil and no error"},
		{"another error for what is gone", func(b *broken) {
			b.getPod = func(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
				if b.Pod(uid) == nil {
					return nil, oops
				}
				return b.Runtime.GetPod(ctx, uid)
			}
		}, "", `expected an error that wraps ErrPodNotFound, saw error "oops"`},
		{"a single pod without what has exited", func(b *broken) {
			b.getPod = func(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
				pod, err := b.Runtime.GetPod(ctx, uid)
				if err != nil {
					return nil, err
				}
				p := *pod
				p.Containers = p.Containers[1:]
				return &p, nil
			}
		}, "", `GetPod("a"): expected the pod as GetPods lists it, exited containers too, saw Containers`},
		{"cancellation taken for absence", func(b *broken) {
			b.getPod = func(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
				pod, err := b.Runtime.GetPod(ctx, uid)
				if err != nil {
					return nil, pleg.ErrPodNotFound
				}
				return pod, nil
			}
		}, "", "expected the pod, or an error that is not ErrPodNotFound"},
		{"a stuck single pod", func(b *broken) { b.BlockIgnoringCancel(plegtest.GetPod, "a") }, "",
			"GetPod with a canceled context: expected an answer within 5s"},

		{"a stream that never connects", func(b *broken) { b.Block(plegtest.WatchContainerEvents, "") }, "",
			"expected a call of connected within 5s, or an error, saw neither"},
		{"a stream that ends at once, as CRI-O's", func(b *broken) { b.SetEventMode(plegtest.EventsEndAtOnce) }, "",
			"WatchContainerEvents: expected a stream that stays open, or ErrEventsUnsupported, " +
				"or an error before connected, saw that it ended at once"},
		{"a stream that breaks at once", func(b *broken) {
			b.watch = func(_ context.Context, connected func(), _ func(pleg.ContainerEvent)) error {
				connected()
				time.Sleep(100 * time.Millisecond)
				return oops
			}
		}, "", "saw that it ended at once"},
		{"a stream that ends before it is connected", func(b *broken) {
			b.watch = func(context.Context, func(), func(pleg.ContainerEvent)) error { return nil }
		}, "", "saw that it ended at once"},
		{"a stream that does not end", func(b *broken) {
			b.watch = func(_ context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
				return b.Runtime.WatchContainerEvents(context.Background(), connected, observe)
			}
		}, "", "expected a return within 5s after the context has ended"},
		{"a stream that does not say why", func(b *broken) {
			b.watch = func(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
				_ = b.Runtime.WatchContainerEvents(ctx, connected, observe)
				return nil
			}
		}, "", "expected an error that says why the stream ended, saw nil"},
		{"a stream that connects twice", func(b *broken) {
			b.watch = func(ctx context.Context, connected func(), _ func(pleg.ContainerEvent)) error {
				connected()
				connected()
				<-ctx.Done()
				return ctx.Err()
			}
		}, "", "expected one call of connected, saw 2"},
		{"events before the connection", func(b *broken) {
			b.watch = func(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
				observe(pleg.ContainerEvent{})
				connected()
				<-ctx.Done()
				return ctx.Err()
			}
		}, "", "expected connected before the first observe"},
		{"a stream of exits that ends at once", func(b *broken) {
			b.watchExits = func(connected func()) error {
				connected()
				return nil
			}
		}, "", "WatchContainerExits: expected a stream that stays open"},
		{"a stream of exits that connects twice", func(b *broken) {
			b.watchExits = func(connected func()) error {
				connected()
				connected()
				return pleg.ErrEventsUnsupported
			}
		}, "", "WatchContainerExits: expected one call of connected, saw 2"},
		{"no description", func(b *broken) { b.silent = true }, "",
			"DescribeRuntime: expected a few words, saw none"},
		{"a call without method", func(b *broken) { b.calls = make([]pleg.RuntimeCall, 1) }, "",
			"expected a method and a time for every call"},
		{"a call that is long over", func(b *broken) { b.calls = make([]pleg.RuntimeCall, 1) }, "",
			"expected no call, since all have returned"},
		{"a panicking stream", func(b *broken) {
			b.watch = func(context.Context, func(), func(pleg.ContainerEvent)) error { panic("oops") }
		}, "", "WatchContainerEvents: expected no panic"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls.Store(0)
				rt := aNode()
				defer rt.BreakEventStreams(nil)
				defer rt.Heal()
				b := &broken{Runtime: rt}
				tc.breaks(b)
				var expected []types.UID
				if tc.expected != "" {
					expected = append(expected, tc.expected)
				}
				err := plegtest.TestRuntime(b, expected...)
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("want %s\ngot %v", tc.want, err)
				}
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("a label is shown: %v", err)
				}
			})
		})
	}
}

func TestTestRuntimeNil(t *testing.T) {
	if err := plegtest.TestRuntime(nil); err == nil {
		t.Error("a nil runtime passes")
	}
}

func TestTestRuntimeLists(t *testing.T) {
	rt := aNode()
	rt.SetPods(nil, plegtest.NewPod(""))
	err := plegtest.TestRuntime(rt, "a")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"4 problem(s) with *plegtest.Runtime", "nil one", "UID for every pod",
		`pod "a" in the list`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}
