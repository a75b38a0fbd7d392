package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// wedge measures the others while a container is wedged: a change of its resources hangs in
// runc. containerd then answers no list of containers, sends no event of any, and ends no
// creation of one, but knows of every exit and answers statuses.
func (m *measurement) wedge(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		n := m.node
		// While it lasts, nobody can ask the runtime which containers there are.
		victims := m.names[1:min(len(m.names), 6)]
		apps := make(map[string]app)
		for _, pod := range m.names {
			a, err := n.appOf(ctx, pod)
			if err != nil {
				return err
			}
			apps[pod] = a
		}
		heal, err := n.wedge(ctx, apps[m.names[0]].id)
		if err != nil {
			return err
		}
		began := time.Now()
		killed, err := m.killBesideWedged(ctx, v, victims, apps)
		if err := errors.Join(err, measure.Wait(ctx, time.Until(began.Add(*wedged)))); err != nil {
			return errors.Join(err, heal())
		}
		m.results.remark(v, "a container is wedged", n.kubelet.healthz(ctx), n.kubelet.unhealthy())
		if err := heal(); err != nil {
			return err
		}
		healed := time.Now()
		defer func() { say("  housekeeping: %s", n.kubelet.said("Housekeeping took longer than expected")) }()
		for _, pod := range victims {
			at, found := n.awaitEvent(ctx, pod, created, killed.at[pod], patience)
			if !found {
				return fmt.Errorf("%s: the container of %s has no successor after %v", v.name, pod, patience)
			}
			m.results.add(v, madeAfterWedge, at.Sub(healed))
		}
		return errors.Join(killed.wait(), m.readLog(v, killed, apps))
	})
}

// wedge has a change of a container's resources hang. heal ends that, and returns when the
// change was made.
func (n *node) wedge(ctx context.Context, id string) (heal func() error, err error) {
	f, err := n.daemon.HangRunc("update", id)
	if err != nil {
		return nil, err
	}
	changed := make(chan error, 1)
	go func() {
		_, err := n.client.UpdateContainerResources(context.WithoutCancel(ctx), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		changed <- err
	}()
	heal = func() error { return errors.Join(f.Heal(), <-changed) }
	for deadline := time.Now().Add(settle); !f.Met(); {
		if err := measure.Wait(ctx, time.Millisecond); err != nil || time.Now().After(deadline) {
			return nil, errors.Join(err, heal(), errors.New("the runtime does not run into the fault of runc"))
		}
	}
	return heal, nil
}

// kills are containers that were killed beside a wedged one.
type kills struct {
	at      map[string]time.Time // by pod
	waiting sync.WaitGroup
	mu      sync.Mutex
	errs    []error // guarded by mu
}

func (k *kills) wait() error {
	k.waiting.Wait()
	return errors.Join(k.errs...)
}

// besideWedged is how long a container is wedged before another is killed, and the time
// between two kills: longer than any relist, and than what the kubelet does every two seconds.
const besideWedged = 3 * time.Second

// killBesideWedged kills the containers of some pods, and measures until the kubelet shows it.
func (m *measurement) killBesideWedged(ctx context.Context, v variant, pods []string, apps map[string]app,
) (*kills, error) {
	k := &kills{at: make(map[string]time.Time)}
	for _, pod := range pods {
		if err := measure.Wait(ctx, besideWedged); err != nil {
			return k, err
		}
		at, err := m.node.crash(apps[pod])
		if err != nil {
			return k, err
		}
		k.at[pod] = at
		k.waiting.Go(func() {
			if err := m.awaitShown(ctx, pod, apps[pod].id); err != nil {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.errs = append(k.errs, err)
				return
			}
			m.results.add(v, shownBesideWedged, time.Since(at))
		})
	}
	return k, nil
}

// awaitShown returns when the kubelet does not show a container as running any more.
func (m *measurement) awaitShown(ctx context.Context, pod, id string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		shown, err := m.node.kubelet.containers(ctx)
		if err == nil && shown[pod+suffix] != id {
			return nil
		}
		if err := errors.Join(measure.Wait(ctx, 20*time.Millisecond), err); ctx.Err() != nil {
			return fmt.Errorf("the kubelet shows the dead container of %s as running: %w", pod, err)
		}
	}
}

// readLog measures by the kubelet's log when its generator has told a death, and when the
// sync loop has taken that. The released EventedPLEG logs only the second.
func (m *measurement) readLog(v variant, killed *kills, apps map[string]app) error {
	for pod, at := range killed.at {
		id := apps[pod].id
		had, found := m.node.kubelet.saidTaken(id)
		if !found {
			return fmt.Errorf("%s: the log has no event of the death of %s's container", v.name, pod)
		}
		told, found := m.node.kubelet.saidAt("ontainer finished", id)
		if !found || told.After(had) {
			told = had
		}
		m.results.add(v, toldBesideWedged, told.Sub(at))
		m.results.add(v, takenBesideWedged, had.Sub(at))
	}
	return nil
}
