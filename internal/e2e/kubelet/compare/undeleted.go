package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// undeletedFor is how long runc deletes nothing: less than the 10 s that containerd gives itself
// for the end of a container before it tries again ever more rarely.
const undeletedFor = 5 * time.Second

// withoutDeletion measures crashes while runc, which is to delete the dead containers, hangs. The
// runtime tells of the exits, and shows the containers as running until they are deleted: whoever
// makes a successor sooner makes it beside one that is dead and not yet taken away.
func (m *measurement) withoutDeletion(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		f, err := m.node.daemon.HangRunc("delete", "")
		if err != nil {
			return err
		}
		healed := make(chan error, 1)
		time.AfterFunc(undeletedFor, func() { healed <- f.Heal() })
		err = m.crashUndeleted(ctx, v, m.names[:min(len(m.names), 5)])
		return errors.Join(err, <-healed)
	})
}

// crashUndeleted kills the containers of some pods, and measures until their successors run.
func (m *measurement) crashUndeleted(ctx context.Context, v variant, pods []string) error {
	killed := make(map[string]time.Time)
	for _, pod := range pods {
		a, err := m.node.appOf(ctx, pod)
		if err != nil {
			return err
		}
		if killed[pod], err = m.node.crash(a); err != nil {
			return err
		}
		if err := measure.Wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	for pod, at := range killed {
		successor, err := m.awaitSuccessor(ctx, v, crashedUndeleted, pod, at)
		if err != nil {
			return err
		}
		const kind = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
		began, found := m.node.awaitEvent(ctx, pod, kind, successor, patience)
		if !found {
			return fmt.Errorf("%s: the successor of %s's container is not started", v.name, pod)
		}
		m.results.add(v, startedUndeleted, began.Sub(at))
	}
	return nil
}
