package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// An event contains its container's status. For dead and removed containers, it is the last status
// that an inspection returned. Events of sandboxes have no status. A PodSync has a status only if
// it corrects the end of a container.
func TestStatusOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		events := n.g.Watch()
		step := func(what string, change func(), lines ...string) {
			t.Helper()
			change()
			n.relist()
			want(t, what, readStatuses(events), lines...)
		}
		pod := plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Exited("a2"), plegtest.Created("a3"))
		step("first", func() { n.SetPods(pod) },
			"a Started a1 running", "a Died a2 exited 0 Completed", "a Started a-sandbox without status")
		step("a death", func() { n.ExitContainer("a", "a1", 137, "OOMKilled") }, "a Died a1 exited 137 OOMKilled")
		step("a removal", func() { n.RemoveContainer("a", "a1") }, "a Removed a1 exited 137 OOMKilled")
		step("a reinspection", func() { n.g.RequestReinspect("a") }, "a PodSync without status")
		step("nothing to report", func() { n.SetContainer("a", "a4", pleg.ContainerStateCreated) })
		step("the end of the pod", func() { n.RemovePod("a") },
			"a Died a4 created", "a Removed a4 created", "a Removed a2 exited 0 Completed",
			"a Died a3 created", "a Removed a3 created",
			"a Died a-sandbox without status", "a Removed a-sandbox without status")
		step("a pod of that UID", func() { n.SetPod(bare("a", plegtest.Running("a5"))) }, "a Started a5 running")
		heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		step("what was never seen", func() { n.SetContainer("a", "a6", pleg.ContainerStateRunning) },
			"a Started a6 without status")
		step("what was seen before", func() { n.ExitContainer("a", "a5", 1, "Error"); n.RemoveContainer("a", "a6") },
			"a Died a6 without status", "a Removed a6 without status", "a Died a5 running")
		heal()
		step("seen at last", func() { n.RemoveContainer("a", "a5") }, "a Removed a5 running", "a PodSync without status")
	})
}

// An inspection shows the end of a container. Its status is too old for the cache, because a list
// has confirmed the pod since the inspection began. The next list no longer shows the container.
// The event of the death still contains the status.
func TestStatusThatIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
		n.start()
		events := n.g.Watch()
		want(t, "first", readStatuses(events), "a Started a1 running", "a Started a2 running")
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, Delay: 2500 * time.Millisecond, Times: 1})()
		defer n.Inject(plegtest.Fault{Method: plegtest.GetPod, Delay: 200 * time.Millisecond, Times: 1})()
		n.g.RequestReinspect("a")
		time.Sleep(2400 * time.Millisecond)
		n.ExitContainer("a", "a1", 3, "Error")
		time.Sleep(200 * time.Millisecond)
		n.RemoveContainer("a", "a1")
		time.Sleep(2 * time.Second)
		want(t, "the death", readStatuses(events),
			"a Died a1 exited 3 Error", "a PodSync without status", "a Removed a1 exited 3 Error")
	})
}

// A crash reporter takes 150 ms for each of 44 deaths. When it reads an event, the cache no longer
// contains the container. Every event still contains the container's status.
func TestStatusesOf44Deaths(t *testing.T) {
	const deaths = 44
	for _, capacity := range []int{-1, 1, 1000} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.EmitOnChange(true)
				n.SetPods(pods(deaths)...)
				sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(capacity))
				n.start()
				for range 2 * deaths { // each container and each sandbox starts
					<-sub
				}
				go func() {
					for i := range deaths {
						uid := types.UID(fmt.Sprintf("pod-%05d", i))
						n.ExitContainer(uid, string(uid)+"-a", i, "Error")
						time.Sleep(10 * time.Millisecond)
						n.RemovePod(uid)
					}
				}()
				time.Sleep(time.Second)
				if got := len(n.cache.GetAll()); got != 0 {
					t.Fatalf("the cache has %d pods", got)
				}
				seen := make(map[string]int)
				for range 4 * deaths { // each container and each sandbox dies and is removed
					e := <-sub
					if e.IsSandbox() {
						continue
					}
					var i int
					if _, err := fmt.Sscanf(string(e.ID), "pod-%05d", &i); err != nil {
						t.Fatal(err)
					}
					if !strings.HasSuffix(withStatus(e), fmt.Sprintf(" pod-%05d-a exited %d Error", i, i)) {
						t.Errorf("got %s", withStatus(e))
					}
					if seen[line(e)]++; e.Type == pleg.ContainerDied {
						time.Sleep(150 * time.Millisecond)
					}
				}
				if len(seen) != 2*deaths {
					t.Errorf("got %v", seen)
				}
			})
		})
	}
}

// In a crash loop, each restart is a new container. A slow reader is not sent every container, but
// the restart count shows how many restarts there were. Each delivered death contains its status.
func TestStatusesOfACrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(true)
		n.SetPods(bare("a", plegtest.Running("life-0")))
		sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		n.start()
		const lives = 44
		go func() {
			for i := range lives {
				id := fmt.Sprintf("life-%d", i)
				time.Sleep(20 * time.Millisecond)
				n.ExitContainer("a", id, 100+i, "Error")
				time.Sleep(20 * time.Millisecond)
				n.RestartContainer("a", id, fmt.Sprintf("life-%d", i+1))
				time.Sleep(20 * time.Millisecond)
				n.RemoveContainer("a", id)
			}
		}()
		r := newReplay(t)
		deaths, restarts := 0, 0
		for {
			time.Sleep(150 * time.Millisecond)
			e := <-sub
			r.take(e)
			if e.Status == nil {
				t.Fatalf("%s has no status", line(e))
			}
			restarts = max(restarts, e.Status.RestartCount)
			var life int
			if _, err := fmt.Sscanf(e.Data.(string), "life-%d", &life); err != nil {
				t.Fatal(err)
			}
			if e.Type == pleg.ContainerDied {
				deaths++
				if e.Status.ExitCode != 100+life || e.Status.RestartCount != life {
					t.Errorf("got %s, restarted %d times", withStatus(e), e.Status.RestartCount)
				}
			}
			if e.Type == pleg.ContainerStarted && life == lives {
				break
			}
		}
		if deaths == 0 || deaths >= lives || restarts != lives {
			t.Errorf("%d deaths and %d restarts of %d", deaths, restarts, lives)
		}
	})
}

// A slow subscriber is sent the last status of a container, even if the container or its pod was
// removed meanwhile.
func TestStatusesAreCoalesced(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile []func(n *node)
		events    []string
	}{
		"it dies, is removed, and others come and go": {[]func(*node){
			func(n *node) { n.ExitContainer("a", "a1", 3, "Error") },
			func(n *node) { n.RemoveContainer("a", "a1") },
			func(n *node) { n.SetContainer("a", "a3", pleg.ContainerStateRunning) },
			func(n *node) { n.ExitContainer("a", "a3", 4, "Error") },
			func(n *node) { n.RemoveContainer("a", "a3") },
			func(n *node) { n.SetContainer("a", "a4", pleg.ContainerStateRunning) },
		}, []string{"a Died a1 exited 3 Error", "a Removed a1 exited 3 Error", "a Started a4 running"}},
		"the pod goes": {[]func(*node){
			func(n *node) { n.ExitContainer("a", "a1", 3, "Error") },
			func(n *node) { n.RemovePod("a") },
		}, []string{
			"a Died a1 exited 3 Error", "a Removed a1 exited 3 Error", "a Died a2 running", "a Removed a2 running",
		}},
		"the pod goes and comes": {[]func(*node){
			func(n *node) { n.ExitContainer("a", "a1", 3, "Error") },
			func(n *node) { n.RemovePod("a") },
			func(n *node) { n.SetPod(bare("a", plegtest.Running("a5"))) },
		}, []string{
			"a Died a1 exited 3 Error", "a Removed a1 exited 3 Error", "a Died a2 running", "a Removed a2 running",
			"a Started a5 running",
		}},
		"the reason is known later": {[]func(*node){
			func(n *node) { n.ExitContainer("a", "a1", 137, "Error") },
			func(n *node) { n.ExitContainer("a", "a1", 137, "OOMKilled"); n.g.RequestReinspect("a") },
			func(n *node) { n.RemoveContainer("a", "a1") },
		}, []string{"a Died a1 exited 137 OOMKilled", "a Removed a1 exited 137 OOMKilled", "a PodSync without status"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				sub := n.g.Subscribe(t.Context(), pleg.WithCapacity(4))
				// A relist after each pod, so that the events of pod 0 come first.
				n.SetPod(bare("0", plegtest.Running("01"), plegtest.Running("02")))
				n.relist()
				n.SetPod(bare("a", plegtest.Running("a1"), plegtest.Running("a2")))
				n.relist() // the channel is full
				n.ExitContainer("0", "01", 0, "Completed")
				n.ExitContainer("0", "02", 0, "Completed")
				n.relist()
				for _, change := range append(c.meanwhile, func(*node) {}) {
					change(n)
					n.relist()
				}
				var got []string
				for range 20 {
					got = append(got, readStatuses(sub)...)
					n.relist()
				}
				want(t, "events", got, append([]string{
					"0 Started 01 running", "0 Started 02 running", "a Started a1 running", "a Started a2 running",
					"0 Died 01 exited 0 Completed", "0 Died 02 exited 0 Completed",
				}, c.events...)...)
			})
		})
	}
}

// A death is published before any status shows the exit. When a status shows the exit, a PodSync
// contains that status. For subscribers that are sent the death later, the death contains it.
func TestStatusSeenAfterItsEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newOrderlyNode(t)
		n.SetPods(bare("0", plegtest.Running("01")), bare("a", plegtest.Running("a1")))
		running := statusOf(n.Pod("a"))
		early := n.g.Subscribe(t.Context(), pleg.WithCapacity(100))
		slow := n.g.Subscribe(t.Context(), pleg.WithCapacity(1))
		n.start()
		readStatuses(early)
		n.SetStatus("a", running) // contradicts the lists from now on
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.g.RequestRelist("a")
		synctest.Wait()
		want(t, "early", readStatuses(early), "a Died a1 running")
		n.SetStatus("a", nil)
		behind := n.g.HealthReport().Backlog
		time.Sleep(10 * time.Second)
		want(t, "early", readStatuses(early), "a PodSync exited 137 OOMKilled")
		want(t, "late", readStatuses(n.g.Subscribe(t.Context(), pleg.WithCapacity(100))),
			"0 Started 01 running", "a Died a1 exited 137 OOMKilled")
		if got := n.g.HealthReport().Backlog; got != behind || got == 0 {
			t.Errorf("a backlog of %d pods has become %d", behind, got)
		}
		var got []string
		for range 3 {
			got = append(got, readStatuses(slow)...)
			synctest.Wait()
		}
		want(t, "slow", got, "0 Started 01 running", "a Started a1 running", "a Died a1 exited 137 OOMKilled")
	})
}

// Many containers come and go. Only the statuses of existing containers and of containers in unread
// updates stay in memory.
func TestStatusesAreBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("counts the heap")
	}
	synctest.Test(t, func(t *testing.T) {
		const size, rounds = 100_000, 100
		var pod *pleg.Pod
		rt := &scripted{
			pods: func() ([]*pleg.Pod, error) { return []*pleg.Pod{pod}, nil },
			status: func(pod *pleg.Pod) (*pleg.PodStatus, error) {
				status := statusOf(pod)
				for _, s := range status.ContainerStatuses {
					s.Message = strings.Repeat("x", size)
				}
				return status, nil
			},
		}
		g := pleg.NewGenericPLEG(rt, 100, 0, pleg.NewCache(), clock.RealClock{},
			pleg.WithLogger(logr.Discard()), pleg.WithPollingOnly())
		before := heapInUse()
		for i := range rounds {
			running, exited := plegtest.Running(fmt.Sprint("c", i)), plegtest.Exited(fmt.Sprint("c", i))
			pod = bare("a", running)
			_ = g.Relist(t.Context())
			if i == 0 {
				g.Subscribe(t.Context(), pleg.WithCapacity(-1))              // no goroutine reads the channel
				readStatuses(g.Subscribe(t.Context(), pleg.WithCapacity(1))) // reads only the first events
			}
			time.Sleep(time.Second)
			pod = bare("a", exited)
			_ = g.Relist(t.Context())
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Minute) // look-ups find removed containers for one minute
		_ = g.Relist(t.Context())
		if grown := heapInUse() - before; grown > 15*size {
			t.Errorf("%d bytes are held after %d containers with %d", grown, rounds, size)
		}
		g.Stop()
	})
}

// Exit returns how a container ended. If no inspection has shown the end, ok is false.
func TestExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		n.relist()
		sub := n.g.Subscribe(t.Context())
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.ExitContainer("a", "a2", 0, "Completed")
		n.relist()
		n.RemovePod("a")
		n.relist()
		type end struct {
			code   int
			reason string
			ok     bool
		}
		want := map[string]end{
			"ContainerDied a1": {137, "OOMKilled", true}, "ContainerRemoved a1": {137, "OOMKilled", true},
			"ContainerDied a2": {0, "Completed", true}, "ContainerRemoved a2": {0, "Completed", true},
		}
		for len(sub) > 0 {
			e := <-sub
			code, reason, ok := e.Exit()
			key := string(e.Type) + " " + e.Data.(string)
			if got := (end{code, reason, ok}); got != want[key] {
				t.Errorf("%s: %v, want %v", key, got, want[key])
			}
			delete(want, key)
		}
		if len(want) > 0 {
			t.Errorf("no event of %v", want)
		}
		if _, _, ok := (*pleg.PodLifecycleEvent)(nil).Exit(); ok {
			t.Error("no event has an exit")
		}
		ended := &pleg.Status{State: pleg.ContainerStateExited, ExitCode: 3}
		for _, kind := range []pleg.PodLifeCycleEventType{pleg.ContainerCreated, pleg.ContainerStarted} {
			if _, _, ok := (&pleg.PodLifecycleEvent{Type: kind, Status: ended}).Exit(); ok != (kind == pleg.ContainerCreated) {
				t.Errorf("%s of an exited container: %v", kind, ok)
			}
		}
	})
}

// If an inspection corrects the ends of several containers, a PodSync is sent for each end, even to
// a slow subscriber. A PodSync without a corrected end has no container.
func TestPodSyncOfALateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("a1"), plegtest.Running("a2"), plegtest.Running("a3")))
		n.start()
		sub := n.g.Subscribe(t.Context())
		slow := n.g.Subscribe(t.Context(), pleg.WithCapacity(-1))
		for range 3 { // reads the three starts
			<-slow
		}
		for id, code := range map[string]int{"a1": 137, "a2": 1, "a3": 137} {
			n.ExitContainer("a", id, code, "Error")
		}
		time.Sleep(1100 * time.Millisecond)
		n.ExitContainer("a", "a1", 137, "OOMKilled")
		n.ExitContainer("a", "a3", 137, "OOMKilled")
		time.Sleep(3 * time.Second)
		n.g.RequestReinspect("a")
		synctest.Wait()
		tell := func(e *pleg.PodLifecycleEvent) string {
			code, reason, ok := e.Exit()
			name := ""
			if e.Container != nil {
				name = e.Container.ID.ID
			}
			return fmt.Sprintf("%s %s %d %s %v", e.Type, name, code, reason, ok)
		}
		var got []string
		for len(sub) > 0 {
			if e := <-sub; !e.Initial {
				got = append(got, tell(e))
			}
		}
		want(t, "events", got, "ContainerDied a1 137 Error true", "ContainerDied a2 1 Error true",
			"ContainerDied a3 137 Error true", "PodSync a1 137 OOMKilled true", "PodSync a3 137 OOMKilled true",
			"PodSync  0  false")
		got = nil
		for range 4 {
			got = append(got, tell(<-slow))
		}
		want(t, "behind", got, "ContainerDied a1 137 Error true", "ContainerDied a2 1 Error true",
			"ContainerDied a3 137 Error true", "PodSync a1 137 OOMKilled true")
	})
}

// If the inspection after a death fails, the event of the death does not show how the container
// ended. The first successful inspection is followed by a PodSync that shows the end. This holds
// for new and for inspected containers. There is no PodSync for other exited containers.
func TestPodSyncOfAnEndThatWasNotSent(t *testing.T) {
	for id, status := range map[string]string{"inspected": "running", "new": "without status"} {
		t.Run(id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.SetPods(bare("a", plegtest.Running("inspected"), plegtest.Exited("other")))
				events := n.g.Watch()
				n.start()
				readStatuses(events)
				heal := n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
				n.SetContainer("a", id, pleg.ContainerStateRunning)
				n.ExitContainer("a", id, 3, "Error")
				n.relist()
				want(t, "the inspection fails", readStatuses(events), "a Died "+id+" "+status)
				heal()
				time.Sleep(15 * time.Second)
				synctest.Wait()
				want(t, "it succeeds", readStatuses(events), "a PodSync exited 3 Error")
				n.g.RequestReinspect("a")
				n.relist()
				want(t, "later", readStatuses(events), "a PodSync without status")
			})
		})
	}
}

// Rule 4: the event of a death contains the container's last status. That status may come from an
// inspection that was superseded before the start was published.
func TestRule4StatusSeenBySupersededInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a"))
		events := n.g.Watch()
		n.start()
		once := plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "a", Times: 1, Block: true}
		first := n.Inject(once)
		n.g.RequestReinspect("a")
		synctest.Wait()
		n.SetContainer("a", "a1", pleg.ContainerStateRunning)
		n.g.RequestRelist("a")
		synctest.Wait()
		second := n.Inject(once)
		first()
		synctest.Wait()
		if s, _ := n.cache.Get("a"); len(s.ContainerStatuses) != 1 {
			t.Fatal("the cache has not seen a1")
		}
		n.RemoveContainer("a", "a1")
		n.g.RequestRelist("a")
		synctest.Wait()
		second()
		synctest.Wait()
		for len(events) > 0 {
			if e := <-events; e.Type != pleg.PodSync && e.Status == nil {
				t.Errorf("%s has no status, and the cache had one", line(e))
			}
		}
	})
}
