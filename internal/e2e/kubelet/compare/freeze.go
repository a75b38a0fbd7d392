package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// freeze measures crashes while the runtime is frozen, from its thaw on.
func (m *measurement) freeze(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		return m.crashFrozen(ctx, v, thawedAfterFreeze, func() error { return measure.Wait(ctx, *frozen) })
	})
}

const (
	// threshold is the generator's, as the kubelet has it.
	threshold = 3 * time.Minute
	// timeoutFrozen is runtime-request-timeout during a long freeze: the sync loop's own calls
	// to the runtime hang too, several in a row, and only between two rounds of them does it
	// ask whether the generator is healthy.
	timeoutFrozen = 30 * time.Second
	// noticedAfter is how long after the threshold it must have asked.
	noticedAfter = 6 * timeoutFrozen
)

// freezeLong has the runtime frozen until the kubelet says that its generator is not
// healthy. Under the gate EventedPLEG that would take more than ten minutes; it is left out.
func (m *measurement) freezeLong(ctx context.Context, v variant) error {
	if v.evented() {
		return nil
	}
	m.node.timeout = timeoutFrozen
	defer func() { m.node.timeout = *requestTimeout }()
	return m.under(ctx, v, func() error {
		return m.crashFrozen(ctx, v, thawedAfterLong, func() error {
			began := time.Now()
			k := m.node.kubelet
			for k.unhealthy() == "" {
				if time.Since(began) > threshold+noticedAfter {
					return fmt.Errorf("%s: the kubelet is healthy with a runtime that is frozen; its log ends:\n%s", v.name, k.tail())
				}
				if err := measure.Wait(ctx, 100*time.Millisecond); err != nil {
					return err
				}
			}
			m.results.add(v, noticedUnhealthy, time.Since(began))
			m.results.remark(v, "containerd frozen past the threshold", k.healthz(ctx), k.unhealthy())
			return nil
		})
	})
}

// crashFrozen freezes the runtime, kills some containers, waits, and measures from the thaw
// on until they have successors.
func (m *measurement) crashFrozen(ctx context.Context, v variant, what kind, waitFrozen func() error) error {
	n := m.node
	crashing := m.names[:min(len(m.names), 4)]
	var apps []app
	for _, pod := range crashing {
		a, err := n.appOf(ctx, pod)
		if err != nil {
			return err
		}
		apps = append(apps, a)
	}
	if err := n.daemon.Freeze(); err != nil {
		return err
	}
	for _, a := range apps {
		if _, err := n.crash(a); err != nil {
			return errors.Join(err, n.daemon.Thaw())
		}
	}
	err := waitFrozen()
	thawed := time.Now()
	if err := errors.Join(err, n.daemon.Thaw()); err != nil {
		return err
	}
	for _, pod := range crashing {
		if _, err := m.awaitSuccessor(ctx, v, what, pod, thawed); err != nil {
			return err
		}
	}
	return nil
}
