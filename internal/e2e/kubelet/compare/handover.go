package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// handOver hands running pods from the released kubelet to the one on the library, and back,
// as an operator would: each is ended with SIGTERM, and its successor started on the same
// folders. No container may be restarted by it, and what happens while no kubelet runs must
// be made good.
func (m *measurement) handOver(ctx context.Context, chosen []variant) error {
	order := []string{"stock", "ours", "stock"}
	for _, name := range order {
		if !slices.ContainsFunc(chosen, func(v variant) bool { return v.name == name }) {
			return nil
		}
	}
	if !m.begun { // the pods are to run before the first of them
		if err := m.under(ctx, variants[0], func() error { return nil }); err != nil {
			return err
		}
	}
	defer m.node.end()
	for i, name := range order {
		v, err := variantOf(name)
		if err != nil {
			return err
		}
		say("the pods are handed over, %d of %d: %s", i+1, len(order), name)
		if err := m.takeOver(ctx, v, m.names[i%len(m.names)]); err != nil {
			return err
		}
	}
	if err := m.node.remove(m.handed); err != nil {
		return err
	}
	m.handed = ""
	return m.awaitAgreement(ctx, variants[0], len(m.names))
}

// takeOver has the next kubelet take the pods over, after what happens meanwhile.
func (m *measurement) takeOver(ctx context.Context, v variant, victim string) error {
	n := m.node
	before, err := n.containers(ctx)
	if err != nil {
		return err
	}
	var restarts map[string]int // of the containers, as the kubelet before has counted them
	if n.kubelet != nil {
		if restarts, err = n.kubelet.running(ctx); err != nil {
			return err
		}
	}
	delete(before, victim+suffix)
	delete(before, m.handed+suffix)
	if err := errors.Join(n.terminate(), m.meanwhile(ctx, victim)); err != nil {
		return err
	}
	began := time.Now()
	if err := n.run(v); err != nil {
		return err
	}
	if _, err := m.awaitSuccessor(ctx, v, handedCrash, victim, began); err != nil {
		return err
	}
	if err := m.awaitAgreement(ctx, v, len(m.names)+1); err != nil {
		return err
	}
	m.results.add(v, handedOver, time.Since(began))
	// Whatever the kubelet thinks has to be restarted, it restarts with its first syncs.
	if err := measure.Wait(ctx, settle); err != nil {
		return err
	}
	if err := errors.Join(m.awaitAgreement(ctx, v, len(m.names)+1), n.kubelet.backedOff()); err != nil {
		return err
	}
	return m.checkUntouched(ctx, v, before, restarts)
}

// meanwhile is what happens while no kubelet runs: the container of one pod dies, a pod is
// new, and the one that was new the last time is removed.
func (m *measurement) meanwhile(ctx context.Context, victim string) error {
	n := m.node
	a, err := n.appOf(ctx, victim)
	if err != nil {
		return err
	}
	if _, err := n.crash(a); err != nil {
		return err
	}
	if m.handed != "" {
		if err := n.remove(m.handed); err != nil {
			return err
		}
	}
	m.added++
	m.handed = fmt.Sprintf("new%03d", m.added)
	return n.add(m.handed)
}

// checkUntouched counts the containers that a switch has restarted, or whose number of
// restarts it has changed.
func (m *measurement) checkUntouched(ctx context.Context, v variant, before map[string]string, restarts map[string]int,
) error {
	after, err := m.node.containers(ctx)
	if err != nil {
		return err
	}
	counted, err := m.node.kubelet.running(ctx)
	if err != nil {
		return err
	}
	for pod, id := range before {
		name := strings.TrimSuffix(pod, suffix)
		was, known := restarts[name]
		if after[pod] == id && (!known || counted[name] == was) {
			m.results.hit(v, untouched)
			continue
		}
		say("  %s: the container of %s was %s with %d restarts, and is %s with %d", v.name, pod, id, was, after[pod],
			counted[name])
		m.results.miss(v, untouched)
	}
	return nil
}
