package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

const (
	// initsAtOnce is how many of the pods whose init container fails come and go at once.
	initsAtOnce = 8
	// initPrefix is how their names begin.
	initPrefix = "init"
)

// codeOfRunc is how runc's own init ends when it is told to before it has become the program of
// the container: as process 1 it survives the signal, and Go's runtime then exits with this.
const codeOfRunc = 2

// initManifest is a static pod whose init container fails, so that its other one never begins.
func initManifest(name string) map[string]any {
	m := testnode.StaticPod(name, nil)
	spec := m["spec"].(map[string]any)
	spec["restartPolicy"], spec["terminationGracePeriodSeconds"] = "Never", 1
	app := spec["containers"].([]any)[0].(map[string]any)
	fail := map[string]any{"name": "fail", "command": []string{"false"}}
	fail["image"], fail["imagePullPolicy"] = app["image"], app["imagePullPolicy"]
	app["command"] = []string{"true"}
	spec["initContainers"] = []any{fail}
	return m
}

// failInits has pods come whose init container fails, and removes them at any moment, half of
// them while that container begins. It is what a test of Kubernetes does that fails now and then
// since relists are quick (kubernetes#135713).
func (m *measurement) failInits(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		shown := &shownInits{codes: make(map[string]int), faults: make(map[string]string)}
		var watcher sync.WaitGroup
		watcher.Go(func() { shown.watch(watching, m.node.kubelet) })
		var names []string
		var workers errgroup.Group
		workers.SetLimit(initsAtOnce)
		for i := range *inits {
			m.added++
			name := fmt.Sprint(initPrefix, m.added)
			names = append(names, name)
			workers.Go(func() error { return m.failInit(ctx, name, i%2 == 0) })
		}
		if err := errors.Join(workers.Wait(), measure.Wait(ctx, settle)); err != nil {
			return err
		}
		stop()
		watcher.Wait()
		for _, name := range names {
			if err := m.awaitGone(ctx, name); err != nil {
				return err
			}
			m.judgeInit(v, name, shown)
		}
		return nil
	})
}

// failInit has one such pod come and go: as soon as its init container is created, and a moment
// later, or at any time within the two seconds that Kubernetes' test takes.
func (m *measurement) failInit(ctx context.Context, name string, asItBegins bool) error {
	at := time.Now()
	if err := m.node.write(name, initManifest(name)); err != nil {
		return err
	}
	moment := rand.N(2 * time.Second)
	if asItBegins {
		if _, found := m.node.awaitEvent(ctx, name, created, at, patience); !found {
			return fmt.Errorf("pod %s has no container after %v; the log ends:\n%s", name, patience, m.node.kubelet.tail())
		}
		moment = rand.N(100 * time.Millisecond)
	}
	if err := measure.Wait(ctx, moment); err != nil {
		return err
	}
	return errors.Join(m.node.remove(name), m.awaitGone(ctx, name))
}

// judgeInit counts whether a pod that is gone was what it should have been, and how its init
// container ended.
func (m *measurement) judgeInit(v variant, name string, shown *shownInits) {
	fault := shown.faults[name]
	for id, container := range m.node.containersOf(name) {
		if container != "fail" {
			fault = "its container " + container + " was created"
			continue
		}
		m.node.mu.Lock()
		end, ended := m.node.exits[id]
		m.node.mu.Unlock()
		if !ended {
			continue // it has never begun
		}
		m.results.tally(v, initOfRunc, map[bool]int{true: 1}[end.code == codeOfRunc])
		if !slices.Contains([]int{1, codeOfRunc, 128 + 9, 128 + 15}, end.code) {
			fault = fmt.Sprint("its init container ended with ", end.code)
		}
		if code, is := shown.codes[name]; is && code != end.code {
			fault = fmt.Sprintf("its init container ended with %d, and is shown with %d", end.code, code)
		}
	}
	if fault != "" {
		say("  %s: pod %s: %s", v.name, name, fault)
		m.results.miss(v, initFailed)
		return
	}
	m.results.hit(v, initFailed)
}

// containersOf returns the names of the containers that were created in a pod, by their IDs.
func (n *node) containersOf(pod string) map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := make(map[string]string)
	for _, e := range n.events {
		if e.ContainerEventType != created || e.GetPodSandboxStatus().GetMetadata().GetName() != pod+suffix {
			continue
		}
		for _, s := range e.ContainersStatuses {
			if s.Id == e.ContainerId {
				names[s.Id] = s.GetMetadata().GetName()
			}
		}
	}
	return names
}

// shownInits is what the kubelet shows of the pods whose init container fails.
type shownInits struct {
	codes  map[string]int    // of the init containers that it has shown to be dead, by pod
	faults map[string]string // what it should not have shown
}

// watch looks at what the kubelet shows until ctx ends.
func (s *shownInits) watch(ctx context.Context, k *kubelet) {
	for measure.Wait(ctx, 20*time.Millisecond) == nil {
		var pods podList
		if answer, err := k.get(ctx, "/pods"); err == nil && json.Unmarshal(answer, &pods) == nil {
			s.see(pods)
		}
	}
}

func (s *shownInits) see(pods podList) {
	for _, p := range pods.Items {
		name := strings.TrimSuffix(p.Metadata.Name, suffix)
		if !strings.HasPrefix(name, initPrefix) {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil || c.State.Terminated != nil {
				s.faults[name] = "its container is shown to have begun"
			}
		}
		for _, c := range p.Status.InitContainerStatuses {
			code, was := s.codes[name]
			switch dead := c.State.Terminated; {
			case dead == nil && was:
				s.faults[name] = "its init container was dead, and is not any more"
			case dead != nil && was && dead.ExitCode != code:
				s.faults[name] = fmt.Sprintf("its init container ended with %d, and then with %d", code, dead.ExitCode)
			case dead != nil:
				s.codes[name] = dead.ExitCode
			}
		}
	}
}
