package main

import (
	"context"
	"errors"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// hang measures the others while the inspections of one pod hang.
func (m *measurement) hang(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		n := m.node
		victim, err := n.appOf(ctx, m.names[0])
		if err != nil {
			return err
		}
		n.proxy.hang(victim.id, victim.sandbox)
		defer n.proxy.release()
		if _, err := n.crash(victim); err != nil {
			return err
		}
		if err := measure.Wait(ctx, 2*time.Second); err != nil {
			return err
		}
		var name string
		newcomer := make(chan error, 1)
		go func() {
			var err error
			name, err = m.addNew(ctx, v, startedBesideHung)
			newcomer <- err
		}()
		others := m.names[1:min(len(m.names), 6)]
		err = m.crashAll(ctx, v, crashedBesideHung, others, 500*time.Millisecond)
		if err := errors.Join(err, <-newcomer); err != nil {
			return err
		}
		m.results.remark(v, "one pod hangs", n.kubelet.healthz(ctx), n.kubelet.unhealthy())
		return n.remove(name)
	})
}
