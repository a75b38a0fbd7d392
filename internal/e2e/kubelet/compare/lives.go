package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

const (
	// atOnceAlive is how many of the short-lived pods exist at once.
	atOnceAlive = 8
	// restEvery is after how many lives everything comes to rest and is compared.
	restEvery = 50
	// restLimit is how long the kubelet may take then. What crashed is in back-off.
	restLimit = 3 * time.Minute
)

// lives has pods come and go while containers crash, inspections hang or fail, and the
// kubelet and the runtime are killed and restarted. Whenever all that pauses, the kubelet
// must come to say what the runtime says.
func (m *measurement) lives(ctx context.Context, v variant) error {
	n := m.node
	defer n.end()
	if err := m.start(ctx, v); err != nil {
		return err
	}
	// The same history for every kubelet, as far as it is ours to decide.
	random := rand.New(rand.NewPCG(1, 2))
	var alive []string
	for i := range *lives {
		m.added++
		alive = append(alive, fmt.Sprintf("new%03d", m.added))
		if err := n.add(alive[len(alive)-1]); err != nil {
			return err
		}
		if len(alive) > atOnceAlive {
			oldest := random.IntN(3)
			if err := n.remove(alive[oldest]); err != nil {
				return err
			}
			alive = append(alive[:oldest], alive[oldest+1:]...)
		}
		if err := errors.Join(n.revive(v), m.disturb(ctx, v, random, i, alive)); err != nil {
			return err
		}
		if err := measure.Wait(ctx, time.Duration(100+random.IntN(500))*time.Millisecond); err != nil {
			return err
		}
		if (i+1)%restEvery == 0 || i+1 == *lives {
			if err := m.rest(ctx, v, len(m.names)+len(alive)); err != nil {
				return err
			}
		}
	}
	for _, name := range alive {
		if err := n.remove(name); err != nil {
			return err
		}
	}
	return errors.Join(m.awaitAgreement(ctx, v, len(m.names)), m.judgeSuccessors(ctx, v))
}

// rest ends the faults, and measures until the kubelet agrees with the runtime.
func (m *measurement) rest(ctx context.Context, v variant, count int) error {
	m.node.proxy.release()
	if err := m.node.revive(v); err != nil {
		return err
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	err := m.awaitAgreement(limited, v, count)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		say("  %v", err)
		m.results.miss(v, agreed)
		return nil
	}
	m.results.hit(v, agreed)
	m.results.add(v, agreed, time.Since(began))
	return nil
}

// disturb does what the turn has of mischief.
func (m *measurement) disturb(ctx context.Context, v variant, random *rand.Rand, turn int, alive []string) error {
	n := m.node
	some := alive[random.IntN(len(alive))]
	fault := n.proxy.hang
	switch {
	case turn%50 == 44:
		say("  turn %d: the runtime is killed", turn)
		err := errors.Join(n.daemon.Kill(), n.daemon.Restart(ctx))
		n.proxy.reconnect()
		return err
	case turn%30 == 28:
		say("  turn %d: the kubelet is killed", turn)
		n.end()
		return n.run(v)
	case turn%20 == 19:
		fault = n.proxy.fail
		fallthrough
	case turn%20 == 9:
		n.proxy.release()
		if a, err := n.appOf(ctx, some); err == nil { // else it has not begun yet
			fault(a.id, a.sandbox)
		}
	case turn%5 == 2:
		if a, err := n.appOf(ctx, some); err == nil {
			_, _ = n.crash(a) // it may have ended meanwhile
		}
	}
	return nil
}

// awaitAgreement waits until the kubelet shows as running what the runtime runs: so many
// pods, each with the same container. A kubelet that is killed before that leaves containers
// that are created and not started; the next one restarts them, and has them in back-off
// when they crash.
func (m *measurement) awaitAgreement(ctx context.Context, v variant, count int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		shown, errShown := m.node.kubelet.containers(ctx) // it may just have been started
		running, errRunning := m.node.containers(ctx)
		last := errors.Join(errShown, errRunning)
		if last == nil && len(shown) == count && maps.Equal(shown, running) {
			return nil
		}
		if m.node.kubelet.ended() {
			return fmt.Errorf("%s: %w; its log ends:\n%s", v.name, errEnded, m.node.kubelet.tail())
		}
		if err := errors.Join(measure.Wait(ctx, 100*time.Millisecond), last); ctx.Err() != nil {
			return fmt.Errorf("%s: wanted are %d pods; the kubelet shows %v, the runtime runs %v: %w; the log ends:\n%s",
				v.name, count, shown, running, err, m.node.kubelet.tail())
		}
	}
}

// containers returns the running containers that the kubelet shows, by pod.
func (k *kubelet) containers(ctx context.Context) (map[string]string, error) {
	answer, err := k.get(ctx, "/pods")
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet for its pods: %w", err)
	}
	var pods podList
	if err := json.Unmarshal(answer, &pods); err != nil {
		return nil, fmt.Errorf("reading the kubelet's pods: %w", err)
	}
	containers := make(map[string]string)
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil {
				_, id, _ := strings.Cut(s.ContainerID, "://")
				containers[p.Metadata.Name] = id
			}
		}
	}
	return containers, nil
}

// containers returns the running containers of the runtime, by pod.
func (n *node) containers(ctx context.Context) (map[string]string, error) {
	list, err := n.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, fmt.Errorf("listing the runtime's containers: %w", err)
	}
	containers := make(map[string]string)
	for _, c := range list.Containers {
		containers[c.Labels[labelPod]] = c.Id
	}
	return containers, nil
}
