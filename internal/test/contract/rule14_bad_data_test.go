package contract_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/randtest"
	"github.com/kubepleg/pleg/plegtest"
)

// good is a pod that the bad data of other pods must not affect.
var good = bare("good", plegtest.Running("good-1"))

// Rule 14: bad data in a list is skipped or read as unknown, counted by reason, and logged once. It
// affects no other pod.
func TestRule14BadList(t *testing.T) {
	state := func(s pleg.State) *pleg.Container { return plegtest.NewContainer("x", s) }
	nothing := func(*testing.T, []string) {}
	events := func(lines ...string) func(*testing.T, []string) {
		return func(t *testing.T, got []string) { want(t, "of the bad pod", got, lines...) }
	}
	for _, c := range []struct {
		reason string
		object string
		pods   []*pleg.Pod
		check  func(*testing.T, []string)
	}{
		{"nil", "pod", []*pleg.Pod{nil, nil}, nothing},
		{"no_id", "pod default/", []*pleg.Pod{bare("", plegtest.Running("x"))}, nothing},
		{
			"duplicate_id", "pod a", []*pleg.Pod{bare("a", plegtest.Running("a1")), bare("a", plegtest.Running("a2"))},
			events("a Started a1"),
		},
		{"duplicate_id", "pod good", []*pleg.Pod{good}, nothing},
		{
			"nil", "container of pod a", []*pleg.Pod{bare("a", nil, plegtest.Running("a1"), nil)},
			events("a Started a1"),
		},
		{
			"no_id", "container of pod a", []*pleg.Pod{bare("a", plegtest.Running(""), plegtest.Running("a1"))},
			events("a Started a1"),
		},
		{
			"duplicate_id", "container a1", []*pleg.Pod{bare("a", plegtest.Running("a1"), plegtest.Exited("a1"))},
			events("a Started a1"),
		},
		{"duplicate_id", "container a1", []*pleg.Pod{{
			ID: "a", Containers: []*pleg.Container{plegtest.Running("a1")}, Sandboxes: []*pleg.Container{plegtest.Exited("a1")},
		}}, events("a Started a1")},
		{
			"unknown_state", "container x", []*pleg.Pod{bare("a", state("half-dead"), plegtest.Running("a1"))},
			events("a Started a1"),
		},
		{"unknown_state", "container x", []*pleg.Pod{bare("a", state(""))}, events()},
	} {
		t.Run(c.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &logLines{}
				rt := &scripted{
					pods:   func() ([]*pleg.Pod, error) { return append(c.pods, good), nil },
					status: func(p *pleg.Pod) (*pleg.PodStatus, error) { return &pleg.PodStatus{ID: p.ID}, nil },
				}
				n, reg := newNodeWithMetricsOf(t, rt.instead, pleg.WithLogger(log.logger(0)))
				watch := n.g.Watch()
				n.relist()
				var ofBad []string
				goods := 0
				for _, l := range read(watch) {
					if l == "good Started good-1" {
						goods++
					} else {
						ofBad = append(ofBad, l)
					}
				}
				if goods != 1 {
					t.Errorf("the good pod was delivered %d times", goods)
				}
				c.check(t, ofBad)
				if got := metric(t, reg, "pleg_bad_data_total", "reason", c.reason); got == 0 {
					t.Error("not counted")
				}
				for range 5 {
					n.relist()
				}
				want(t, "delivered again", read(watch))
				if got := log.matching(`"reason"="` + c.reason + `" "object"="` + c.object + `"`); len(got) != 1 {
					t.Errorf("logged %q", got)
				}
			})
		})
	}
}

// Rule 14: a pod with thousands of containers, listed in changing order, causes no error.
func TestRule14HugePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 5000
		flip := false
		rt := &scripted{
			pods: func() ([]*pleg.Pod, error) {
				p := bare("huge")
				for i := range size {
					if flip {
						i = size - 1 - i
					}
					p.Containers = append(p.Containers, plegtest.Running(fmt.Sprint(i)))
				}
				flip = !flip
				return []*pleg.Pod{p, good}, nil
			},
			status: func(p *pleg.Pod) (*pleg.PodStatus, error) { return &pleg.PodStatus{ID: p.ID}, nil },
		}
		n := newNodeOf(t, rt.instead)
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(3*size))
		n.relist()
		n.relist()
		if got := len(read(sub)); got != size+1 {
			t.Errorf("%d events", got)
		}
		n.g.Stop()
	})
}

// Rule 14: a bad status is an error or is corrected. It affects no other pod.
func TestRule14BadStatus(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		status       *pleg.PodStatus
		err          string
	}{
		{"nil", "nil", nil, "the runtime returned no status of pod default/a (a), and no error"},
		{
			"of another pod", "wrong_uid", &pleg.PodStatus{ID: "b"},
			"the runtime returned the status of pod b for pod default/a (a)",
		},
		{"without ID", "", &pleg.PodStatus{}, ""},
		{"with nil items", "nil", &pleg.PodStatus{
			ContainerStatuses:       []*pleg.Status{nil, {Name: "x"}, nil},
			ActiveContainerStatuses: []*pleg.Status{nil},
			SandboxStatuses:         []*runtimeapi.PodSandboxStatus{nil},
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &scripted{
					pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{bare("a", plegtest.Running("a1")), good}, nil },
					status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
						if p.ID == "a" {
							return c.status, nil
						}
						return &pleg.PodStatus{ID: p.ID}, nil
					},
				}
				n, reg := newNodeWithMetricsOf(t, rt.instead)
				watch := n.g.Watch()
				n.relist()
				want(t, "events", read(watch), "a Started a1", "good Started good-1")
				s, err := n.cache.Get("a")
				if s == nil || s.ID != "a" {
					t.Errorf("the cache has %v", s)
				}
				if fmt.Sprint(err) != c.err && (err != nil || c.err != "") {
					t.Errorf("the error is %v", err)
				}
				for _, cs := range s.ContainerStatuses {
					if cs == nil {
						t.Error("a nil item got through")
					}
				}
				if c.reason != "" && metric(t, reg, "pleg_bad_data_total", "reason", c.reason) == 0 {
					t.Error("not counted")
				}
			})
		})
	}
}

// Rule 14: bad data in a pod list changes no state.
func TestRule14BadPodList(t *testing.T) {
	for _, c := range []struct {
		reason string
		pod    *pleg.Pod
	}{{"nil", nil}, {"wrong_uid", bare("other", plegtest.Exited("a1"))}} {
		synctest.Test(t, func(t *testing.T) {
			rt := &scripted{
				pods:   func() ([]*pleg.Pod, error) { return []*pleg.Pod{good}, nil },
				status: func(p *pleg.Pod) (*pleg.PodStatus, error) { return &pleg.PodStatus{ID: p.ID}, nil },
				pod:    func(types.UID) (*pleg.Pod, error) { return c.pod, nil },
			}
			n, reg := newNodeWithMetricsOf(t, rt.instead)
			watch := n.g.Watch()
			n.start()
			n.g.RequestRelist("good")
			n.g.RequestRelist("")
			synctest.Wait()
			want(t, "events", read(watch), "good Started good-1")
			wantMetric(t, reg, "pleg_bad_data_total", 1, "reason", c.reason)
		})
	}
}

// Rule 14: if the runtime panics or ends the goroutine of a call, the call counts as failed.
// Nothing else happens.
func TestRule14RuntimePanics(t *testing.T) {
	for name, misbehave := range map[string]func(){
		"panics":             func() { panic("nil map") },
		"ends its goroutine": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				badly := true
				rt := &scripted{
					pods: func() ([]*pleg.Pod, error) {
						if badly {
							misbehave()
						}
						return []*pleg.Pod{bare("a", plegtest.Running("a1")), good}, nil
					},
					status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
						if p.ID == "a" {
							misbehave()
						}
						return &pleg.PodStatus{ID: p.ID}, nil
					},
					pod: func(types.UID) (*pleg.Pod, error) { misbehave(); return nil, nil },
				}
				n, reg := newNodeWithMetricsOf(t, rt.instead)
				watch := n.g.Watch()
				n.relist()
				unhealthy(t, n.g, "pleg has yet to be successful: ", "GetPods panicked: ")
				badly = false
				n.relist()
				healthy(t, n.g)
				want(t, "events", read(watch), "a Started a1", "good Started good-1")
				if _, err := n.cache.Get("a"); err == nil {
					t.Error("no error of the inspection")
				}
				n.start()
				n.g.RequestRelist("a")
				time.Sleep(500 * time.Millisecond)
				if got := metric(t, reg, "pleg_bad_data_total", "reason", "panic"); got < 3 {
					t.Errorf("counted %v times", got)
				}
			})
		})
	}
}

// If an event source panics, its stream counts as broken.
func TestRule14EventSourcePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		panics := func(context.Context) error { panic("nil map") }
		n.Inject(plegtest.Fault{Method: plegtest.WatchContainerEvents, Times: 1, Do: panics})
		n.start()
		wantMetric(t, reg, "pleg_bad_data_total", 1, "reason", "panic")
		got := n.g.HealthReport().Stream
		if got.State != pleg.StreamBroken || got.Error != "WatchContainerEvents panicked: nil map" {
			t.Errorf("the stream is %v", got)
		}
		time.Sleep(2 * time.Second)
		if got := n.g.HealthReport().Stream.State; got != pleg.StreamConnected {
			t.Errorf("the stream is %v", got)
		}
	})
}

// Rule 14: events and statuses show an invalid state as unknown. The state is counted for every
// list and every status that contains it.
func TestRule14UnknownStateIsUnknownToAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.NewContainer("a1", "paused"), plegtest.Running("a2")))
		events := n.g.Watch()
		for range 3 {
			n.relist()
		}
		wantMetric(t, reg, "kubelet_running_containers", 1, "container_state", "unknown")
		wantMetric(t, reg, "pleg_bad_data_total", 4, "reason", "unknown_state")
		if s, _ := n.cache.Get("a"); s.FindContainerStatusByID("a1").State != pleg.ContainerStateUnknown {
			t.Errorf("the cache has %+v", s.ContainerStatuses[0])
		}
		if e := <-events; e.Pod.Containers[0].State != pleg.ContainerStateUnknown {
			t.Errorf("%s: the state is %s", line(e), e.Pod.Containers[0].State)
		}
	})
}

// Rule 14: a container that is listed twice counts as one container, in short and in long lists.
func TestRule14DuplicateInALongList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		list := make([]*pleg.Container, 100)
		for i := range list {
			list[i] = plegtest.Running(fmt.Sprint(i))
		}
		n.SetPods(bare("a", append(list, plegtest.Exited("50"))...), bare("b", plegtest.Unknown("b1")))
		events := n.g.Watch()
		n.relist()
		if got := len(read(events)); got != 100 {
			t.Errorf("%d events", got)
		}
		wantMetric(t, reg, "pleg_bad_data_total", 2, "reason", "duplicate_id") // in the list and in the status
		wantMetric(t, reg, "pleg_bad_data_total", 0, "reason", "unknown_state")
	})
}

// nilError is an error type. Its method Error panics on a nil pointer.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// Rule 14: an error that is a nil pointer in an interface is handled like any other error.
func TestRule14NilErrorInAnInterface(t *testing.T) {
	var broken *nilError
	a := []*pleg.Pod{bare("a", plegtest.Running("a1"))}
	for name, rt := range map[string]*scripted{
		"list": {
			pods: func() ([]*pleg.Pod, error) { return nil, broken },
		},
		"pod list": {
			pods:   func() ([]*pleg.Pod, error) { return a, nil },
			pod:    func(types.UID) (*pleg.Pod, error) { return nil, broken },
			status: func(*pleg.Pod) (*pleg.PodStatus, error) { return &pleg.PodStatus{}, nil },
		},
		"inspection": {
			pods:   func() ([]*pleg.Pod, error) { return a, nil },
			pod:    func(types.UID) (*pleg.Pod, error) { return a[0], nil },
			status: func(*pleg.Pod) (*pleg.PodStatus, error) { return &pleg.PodStatus{}, broken },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				n := newNodeOf(t, rt.instead, pleg.WithRegisterer(reg))
				n.start()
				n.g.RequestRelist("a")
				time.Sleep(1500 * time.Millisecond)
				n.g.HealthReport()
				if got := metric(t, reg, "pleg_bad_data_total", "reason", "panic"); got == 0 {
					t.Error("not counted")
				}
			})
		})
	}
}

// Rule 14: nil items of a status are removed. The other items stay, in order.
func TestRule14NilItemsLeaveTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := &pleg.Status{ID: pleg.ContainerID{ID: "1"}, State: pleg.ContainerStateRunning}
		two := &pleg.Status{ID: pleg.ContainerID{ID: "2"}, State: pleg.ContainerStateRunning}
		sandbox := &runtimeapi.PodSandboxStatus{Id: "s"}
		rt := &scripted{
			pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{good}, nil },
			status: func(*pleg.Pod) (*pleg.PodStatus, error) {
				return &pleg.PodStatus{
					ContainerStatuses:       []*pleg.Status{one, nil, nil, two},
					ActiveContainerStatuses: []*pleg.Status{nil, two},
					SandboxStatuses:         []*runtimeapi.PodSandboxStatus{sandbox, nil},
				}, nil
			},
		}
		n := newNodeOf(t, rt.instead)
		n.relist()
		s, err := n.cache.Get("good")
		if err != nil || !slices.Equal(s.ContainerStatuses, []*pleg.Status{one, two}) ||
			!slices.Equal(s.ActiveContainerStatuses, []*pleg.Status{two}) ||
			!slices.Equal(s.SandboxStatuses, []*runtimeapi.PodSandboxStatus{sandbox}) {
			t.Errorf("got %v %v", s, err)
		}
	})
}

// Random bad data in lists, statuses and exit events is counted, and has no other effect.
func TestExitHistoriesWithBadData(t *testing.T) {
	randtest.Check(t, 300, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex // calls overlap
			intn := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			id := func() string {
				return []string{"", "x", "y", "z", "s", "w"}[intn(6)]
			}
			container := func() *pleg.Container {
				if intn(8) == 0 {
					return nil
				}
				states := []pleg.State{"running", "running", "exited", "created", "garbage", "unknown"}
				return &pleg.Container{ID: pleg.ContainerID{Type: "t", ID: id()}, State: states[intn(6)]}
			}
			mk := func() *pleg.Pod {
				if intn(15) == 0 {
					return nil
				}
				p := bare(types.UID([]string{"", "a", "b", "a", "b", "c"}[intn(6)]))
				for range intn(4) {
					p.Containers = append(p.Containers, container())
				}
				for range intn(2) {
					p.Sandboxes = append(p.Sandboxes, container())
				}
				return p
			}
			var newest atomic.Pointer[[]*pleg.Pod]
			newest.Store(new([]*pleg.Pod))
			fail := func() error {
				if intn(20) == 0 {
					return fmt.Errorf("x")
				}
				return nil
			}
			s := &scripted{
				pods: func() ([]*pleg.Pod, error) {
					if intn(2) == 0 {
						var list []*pleg.Pod
						for range intn(5) {
							list = append(list, mk())
						}
						newest.Store(&list)
					}
					return *newest.Load(), fail()
				},
				pod: func(uid types.UID) (*pleg.Pod, error) {
					for _, p := range *newest.Load() {
						if p != nil && p.ID == uid && intn(2) == 0 {
							return p, fail()
						}
					}
					if intn(3) == 0 {
						return nil, pleg.ErrPodNotFound
					}
					p := mk()
					if p != nil && intn(2) == 0 {
						p.ID = uid
					}
					return p, fail()
				},
				status: func(p *pleg.Pod) (*pleg.PodStatus, error) {
					if intn(10) == 0 {
						return nil, nil
					}
					st := &pleg.PodStatus{}
					src := p
					if intn(2) == 0 {
						if q := mk(); q != nil {
							src = q
						}
					}
					for _, c := range src.Containers {
						if c == nil || intn(6) == 0 {
							st.ContainerStatuses = append(st.ContainerStatuses, nil)
							continue
						}
						x := &pleg.Status{ID: c.ID, State: c.State}
						if intn(3) == 0 {
							x.State = "exited"
						}
						if intn(3) == 0 {
							x.StartedAt = time.Now()
						}
						if intn(3) == 0 {
							x.FinishedAt = time.Now()
						}
						st.ContainerStatuses = append(st.ContainerStatuses, x)
					}
					if intn(3) == 0 {
						st.SandboxStatuses = append(st.SandboxStatuses, nil, &runtimeapi.PodSandboxStatus{Id: id()})
					}
					return st, fail()
				},
			}
			source := plegtest.NewRuntime()
			n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
				if intn(2) == 0 {
					return struct {
						pleg.Runtime
						pleg.ExitSource
					}{s, source}
				}
				return struct {
					*scripted
					pleg.ExitSource
				}{s, source}
			})
			events := n.g.Watch()
			n.g.Start(t.Context())
			for range 40 {
				switch intn(4) {
				case 0:
					uid := types.UID([]string{"", "a", "b", "q"}[intn(4)])
					source.EmitExit(pleg.ContainerExit{PodUID: uid, ContainerID: id(), ExitCode: intn(3)})
				case 1:
					n.g.RequestRelist(types.UID([]string{"a", "b", "q"}[intn(3)]))
				case 2:
					n.g.RequestReinspect(types.UID([]string{"a", "b", "q"}[intn(3)]))
				}
				time.Sleep(time.Duration(intn(1200)) * time.Millisecond)
				for len(events) > 0 {
					<-events
				}
				n.g.HealthReport()
				n.g.Pods()
			}
			n.g.Stop()
		})
	})
}

// Rule 14: every list contains the same pointer to a pod with a nil container. An exit event
// arrives between two lists. The death is delivered.
func TestRule14BadDataBesideExitEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := bare("a", nil, plegtest.Running("a1"))
		source := plegtest.NewRuntime()
		s := &scripted{
			pods:   func() ([]*pleg.Pod, error) { return []*pleg.Pod{pod}, nil },
			pod:    func(types.UID) (*pleg.Pod, error) { return pod, nil },
			status: func(*pleg.Pod) (*pleg.PodStatus, error) { return statusOf(bare("a", plegtest.Running("a1"))), nil },
		}
		n := newNodeOf(t, func(*plegtest.Runtime) pleg.Runtime {
			return struct {
				*scripted
				pleg.ExitSource
			}{s, source}
		})
		events := n.g.Watch()
		n.start()
		want(t, "first", read(events), "a Started a1")
		source.EmitExit(exitOf("a1", 3)) // the exit event is a hint, so the pod is listed
		time.Sleep(5 * time.Second)
		want(t, "the exit", read(events), "a Died a1")
	})
}

// panicking is a runtime whose optional methods panic.
type panicking struct{ pleg.Runtime }

func (panicking) CallsInFlight() ([]pleg.RuntimeCall, time.Time) { panic("calls") }

func (panicking) DescribeRuntime() string { panic("description") }

// Rule 14: a panic of CallsInFlight or DescribeRuntime does no harm.
func TestRule14ReportersPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetricsOf(t, func(rt *plegtest.Runtime) pleg.Runtime { return panicking{rt.Plain()} })
		n.relist()
		if r := n.g.HealthReport(); !r.Healthy || r.Runtime != "" || len(r.CallsInFlight) != 0 {
			t.Errorf("the report is %+v", r)
		}
		wantMetric(t, reg, "pleg_bad_data_total", 2, "reason", "panic")
	})
}

// Rule 14: an error may wrap a nil pointer. Error works, but Unwrap of the nil pointer panics.
func TestRule14ErrorThatPanicsWhenUnwrapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(pods(1)...)
		var missing *fs.PathError
		n.Fail(plegtest.GetPods, plegtest.AnyPod, fmt.Errorf("cannot list: %w", missing))
		if err := n.g.Relist(t.Context()); err == nil {
			t.Error("no error")
		}
	})
}

// Rule 14: if a status contains a container twice, the second one is removed and counted. The pod
// stays fresh.
func TestRule14RepeatedContainerInAStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, reg := newNodeWithMetrics(t)
		n.SetPods(bare("a", plegtest.Running("a1")))
		status := statusOf(n.Pod("a"))
		status.ContainerStatuses = append(status.ContainerStatuses, status.ContainerStatuses...)
		n.SetStatus("a", status)
		n.start()
		time.Sleep(10 * time.Second)
		if !fresh(n.cache, "a", time.Now().Add(-2*time.Second)) {
			t.Error("the pod does not become fresh")
		}
		wantMetric(t, reg, "pleg_bad_data_total", 1, "reason", "duplicate_id")
		if got := len(mustGet(t, n.cache).ContainerStatuses); got != 1 {
			t.Errorf("%d statuses of one container", got)
		}
	})
}
