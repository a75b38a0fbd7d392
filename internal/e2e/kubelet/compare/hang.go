package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// hang measures the others while the inspections of one pod hang, and then that pod itself. How
// long they hang is about as long as a call may take: some have been given up then, some have not.
func (m *measurement) hang(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		n := m.node
		victim, err := n.appOf(ctx, m.names[0])
		if err != nil {
			return err
		}
		n.proxy.hang(victim.id, victim.sandbox)
		defer n.proxy.release()
		killed, err := n.crash(victim)
		if err != nil {
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
		holds := time.Until(killed.Add(n.timeout/2 + rand.N(n.timeout)))
		if err := errors.Join(n.remove(name), measure.Wait(ctx, holds)); err != nil {
			return err
		}
		released := time.Now()
		n.proxy.release()
		own, found := n.awaitEvent(ctx, m.names[0], created, killed, patience)
		if !found {
			return fmt.Errorf("%s: the pod that hung has no successor; the log ends:\n%s", v.name, n.kubelet.tail())
		}
		m.results.add(v, releasedSuccessor, max(0, own.Sub(released)))
		return nil
	})
}
