package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// idle measures the CPU time of kubelet and runtime while nothing happens.
func (m *measurement) idle(ctx context.Context, chosen []variant) error {
	for count := range strings.SplitSeq(*idlePods, ",") {
		wanted, err := strconv.Atoi(strings.TrimSpace(count))
		if err != nil {
			return fmt.Errorf("-idle-pods: %w", err)
		}
		for len(m.names) < wanted {
			m.names = append(m.names, fmt.Sprintf("pod%03d", len(m.names)))
			if err := m.node.add(m.names[len(m.names)-1]); err != nil {
				return err
			}
		}
		for _, v := range chosen {
			say("idle with %d pods: %s", wanted, v.name)
			if err := m.under(ctx, v, func() error { return m.idleUnder(ctx, v, wanted) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measurement) idleUnder(ctx context.Context, v variant, count int) error {
	if err := measure.Wait(ctx, 2*settle); err != nil {
		return err
	}
	runtime, err := m.node.daemon.Pid()
	if err != nil {
		return err
	}
	pids := []int{m.node.kubelet.cmd.Process.Pid, runtime}
	before, err := cpus(pids)
	if err != nil {
		return err
	}
	if err := measure.Wait(ctx, *idle); err != nil {
		return err
	}
	after, err := cpus(pids)
	if err != nil {
		return err
	}
	var together time.Duration
	for i, program := range []string{"kubelet", "containerd"} {
		perSecond := time.Duration(float64(after[i]-before[i]) / idle.Seconds())
		m.results.add(v, idleKind(count, program), perSecond)
		together += perSecond
	}
	m.results.add(v, idleKind(count, bothPrograms), together)
	return nil
}

// cpus returns the CPU times that processes have used.
func cpus(pids []int) ([]time.Duration, error) {
	var used []time.Duration
	for _, pid := range pids {
		one, err := measure.CPUOf(pid)
		if err != nil {
			return nil, err
		}
		used = append(used, one)
	}
	return used, nil
}
