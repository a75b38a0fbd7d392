package cri_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// On containerd 1.6 and 1.7, CRI's stream is not usable, so containerd's own stream is read. Its
// events name a pod only if a list has shown the container.
func TestHintsOfContainerd1(t *testing.T) {
	for _, version := range []string{"v1.6.36", "v1.7.35"} {
		t.Run(version, func(t *testing.T) {
			s, r := serverAndRuntime(t, criserver.WithVersion("containerd", version))
			w := watch(t, r)
			<-w.connected
			waitFor(t, func() bool { return serverconfig.Of(s).TaskExitReaders() == 1 })
			if got := s.Calls("GetContainerEvents"); got != 0 {
				t.Errorf("%d streams of CRI's were opened", got)
			}
			next := func(what, id, uid string) {
				t.Helper()
				if e := <-w.events; e.ContainerID != id || string(e.PodUID) != uid || e.CreatedAt.IsZero() {
					t.Errorf("%s: %+v", what, e)
				}
			}
			sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
			next("the sandbox's creation", sandbox, "")
			next("its start", sandbox, "")
			id, err := s.CreateContainer(sandbox, criserver.ContainerConfig{Name: "app"})
			must(t, err)
			next("the creation", id, "")
			getPods(t, r)
			must(t, s.StartContainer(id))
			next("the start", id, "uid")
			must(t, s.ExitContainer(id, 1, "")) // no hint: WatchContainerExits reports the exit
			must(t, s.RemoveContainer(id))
			next("the removal", id, "uid")
			must(t, s.RemovePodSandbox(sandbox))
			next("the sandbox's removal", sandbox, "uid")
			if got := s.Calls("ContainerStatus"); got != 0 {
				t.Errorf("%d containers were asked for their pods, although lists work", got)
			}
		})
	}
}

// On containerd 1.6 and 1.7, a generator reports containers that live 20 ms and are removed after
// 200 ms, although its periodic lists come only every second.
func TestShortLivesOnContainerd1(t *testing.T) {
	const lives = 40
	for name, model := range map[string]criserver.Model{
		"1.6": criserver.Containerd16, "1.7": criserver.Containerd17,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
				events := g.Subscribe(t.Context(), pleg.WithCapacity(10*lives))
				sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
				serverconfig.Of(s).ResetCalls()
				for range lives {
					id := runContainer(t, s, sandbox, "app")
					time.Sleep(20 * time.Millisecond)
					must(t, s.ExitContainer(id, 3, ""))
					time.Sleep(180 * time.Millisecond)
					must(t, s.RemoveContainer(id))
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				seen := map[pleg.PodLifeCycleEventType]int{}
				for len(events) > 0 {
					if e := <-events; !e.IsSandbox() {
						seen[e.Type]++
						if e.Type == pleg.ContainerDied && (e.Status == nil || e.Status.ExitCode != 3) {
							t.Errorf("a death with %+v", e.Status)
						}
					}
				}
				for _, kind := range []pleg.PodLifeCycleEventType{
					pleg.ContainerStarted, pleg.ContainerDied, pleg.ContainerRemoved,
				} {
					if seen[kind] != lives {
						t.Errorf("%d times %s, want %d", seen[kind], kind, lives)
					}
				}
				t.Logf("%d lists in %v", s.Calls("ListContainers"), lives*200*time.Millisecond)
			}, criserver.WithModel(model))
		})
	}
}

// On containerd 1.6 and 1.7, lists fail if the node has too many containers. Starts in known and in
// new pods are reported even then. If the status of one container is stuck, other starts are not
// delayed.
func TestStartsWhileListsFailOnContainerd1(t *testing.T) {
	for name, model := range map[string]criserver.Model{
		"1.6": criserver.Containerd16, "1.7": criserver.Containerd17,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *criserver.Server, g *pleg.GenericPLEG) {
				known := s.RunPod(criserver.PodConfig{UID: "known"})
				crowd := s.RunPod(criserver.PodConfig{UID: "crowd"})
				time.Sleep(2 * time.Second)
				for range 100 {
					id := runContainer(t, s, crowd, "app")
					must(t, s.ExitContainer(id, 0, ""))
				}
				time.Sleep(2 * time.Second)
				if r := g.HealthReport(); r.RelistError == "" {
					t.Fatalf("lists work: %+v", r)
				}
				events := g.Subscribe(t.Context(), pleg.WithCapacity(1000))
				synctest.Wait()
				for len(events) > 0 {
					<-events
				}
				stuck, err := s.CreateContainer(crowd, criserver.ContainerConfig{Name: "stuck"})
				must(t, err)
				defer s.Block("ContainerStatus", stuck)()
				must(t, s.StartContainer(stuck))
				serverconfig.Of(s).ResetCalls()
				inKnown := runContainer(t, s, known, "app")
				newPod := s.RunPod(criserver.PodConfig{UID: "new"})
				inNew := runContainer(t, s, newPod, "app")
				time.Sleep(300 * time.Millisecond)
				started := map[string]types.UID{}
				for len(events) > 0 {
					if e := <-events; e.Type == pleg.ContainerStarted && !e.IsSandbox() {
						started[e.Data.(string)] = e.ID
					}
				}
				if len(started) != 2 || started[inKnown] != "known" || started[inNew] != "new" {
					t.Errorf("started: %v", started)
				}
				must(t, s.ExitContainer(inNew, 3, ""))
				time.Sleep(300 * time.Millisecond)
				code := -1
				for len(events) > 0 {
					if e := <-events; e.Type == pleg.ContainerDied && e.Data == inNew {
						code, _, _ = e.Exit()
					}
				}
				if code != 3 {
					t.Errorf("its exit code is %d", code)
				}
				must(t, s.RemoveContainer(inNew))
				runContainer(t, s, newPod, "next") // this start causes a list of the pod
				time.Sleep(300 * time.Millisecond)
				removed := false
				for len(events) > 0 {
					e := <-events
					removed = removed || e.Type == pleg.ContainerRemoved && e.Data == inNew
				}
				if !removed {
					t.Error("the next list of its pod has not shown that it is gone")
				}
			}, criserver.WithModel(model), serverconfig.With[criserver.Option](serverconfig.Config{MaxSend: 10_000}))
		})
	}
}
