package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	stopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	// settle is how long a kubelet is left alone after its pods run, for its first syncs.
	settle = 3 * time.Second
	// patience is the longest that a crash may go without an answer.
	patience = 6 * time.Minute
)

// measurement drives kubelets over the pods of a node.
type measurement struct {
	node    *node
	names   []string // of the pods
	results *results
	added   int
}

// start starts a kubelet and waits until all pods run.
func (m *measurement) start(ctx context.Context, v variant) error {
	n := m.node
	if err := n.run(v); err != nil {
		return err
	}
	return n.kubelet.await(ctx, "has all pods running", func(running map[string]int) bool {
		return len(running) == len(m.names)
	})
}

// round measures a start over running pods, the first crash of every container, and new
// pods.
func (m *measurement) round(ctx context.Context, v variant, first bool) error {
	n := m.node
	defer n.end()
	if err := m.start(ctx, v); err != nil {
		return err
	}
	if !first {
		m.results.add(v, restarted, time.Since(n.kubelet.started))
	}
	if err := wait(ctx, settle); err != nil {
		return err
	}
	for _, i := range rand.Perm(len(m.names)) {
		if err := pause(ctx); err != nil {
			return err
		}
		if err := m.crash(ctx, v, m.names[i]); err != nil {
			return err
		}
	}
	for range *starts {
		if err := pause(ctx); err != nil {
			return err
		}
		if err := m.addAndRemove(ctx, v); err != nil {
			return err
		}
	}
	return errors.Join(n.kubelet.checkMetrics(ctx), m.awaitAgreement(ctx, v, len(m.names)))
}

func (m *measurement) crash(ctx context.Context, v variant, pod string) error {
	n := m.node
	a, err := n.appOf(ctx, pod)
	if err != nil {
		return err
	}
	at, err := n.crash(a)
	if err != nil {
		return err
	}
	successor, found := n.awaitEvent(ctx, pod, created, at, patience)
	if !found {
		return fmt.Errorf("%s: the container of %s has no successor after %v; the log ends:\n%s", v.name, pod, patience,
			n.kubelet.tail())
	}
	m.results.add(v, crashed, successor.Sub(at))
	// The end is announced before the successor is made, if the runtime announces it at all.
	if end, found := n.awaitEvent(ctx, pod, stopped, at, settle); found {
		m.results.add(v, announced, end.Sub(at))
	}
	return nil
}

// addAndRemove measures a new pod, until the kubelet says that it runs, and its end, until
// the kubelet shows it no more.
func (m *measurement) addAndRemove(ctx context.Context, v variant) error {
	n := m.node
	m.added++
	name := fmt.Sprintf("new%03d", m.added)
	at := time.Now()
	if err := n.add(name); err != nil {
		return err
	}
	if err := n.kubelet.await(ctx, "runs a new pod", func(running map[string]int) bool {
		_, ok := running[name]
		return ok
	}); err != nil {
		return err
	}
	m.results.add(v, started, time.Since(at))
	if err := n.remove(name); err != nil {
		return err
	}
	return m.awaitGone(ctx, name)
}

// awaitGone waits until the runtime runs nothing of a pod.
func (m *measurement) awaitGone(ctx context.Context, name string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		list, err := m.node.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{labelPod: name + "-node"},
				State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}},
		})
		if err != nil {
			return fmt.Errorf("looking for pod %s: %w", name, err)
		}
		if len(list.Items) == 0 {
			return nil
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("pod %s does not go; the log ends:\n%s", name, m.node.kubelet.tail())
}

// crashAll kills the containers of some pods and measures all of their successors.
func (m *measurement) crashAll(ctx context.Context, v variant, what kind, pods []string, gap time.Duration) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	lost := make(chan error, len(pods))
	for _, pod := range pods {
		a, err := m.node.appOf(ctx, pod)
		if err != nil {
			return err
		}
		at, err := m.node.crash(a)
		if err != nil {
			return err
		}
		waiting.Go(func() {
			successor, found := m.node.awaitEvent(ctx, pod, created, at, patience)
			if !found {
				lost <- fmt.Errorf("%s: the container of %s has no successor", v.name, pod)
				return
			}
			m.results.add(v, what, successor.Sub(at))
		})
		if err := wait(ctx, gap); err != nil {
			return err
		}
	}
	waiting.Wait()
	close(lost)
	var errs []error
	for err := range lost {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hang measures the others while the inspections of one pod hang.
func (m *measurement) hang(ctx context.Context, v variant) error {
	n := m.node
	defer n.end()
	if err := m.start(ctx, v); err != nil {
		return err
	}
	if err := wait(ctx, settle); err != nil {
		return err
	}
	victim, err := n.appOf(ctx, m.names[0])
	if err != nil {
		return err
	}
	n.proxy.hang(victim.id, victim.sandbox)
	defer n.proxy.release()
	if _, err := n.crash(victim); err != nil {
		return err
	}
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	m.added++
	name := fmt.Sprintf("new%03d", m.added)
	newcomer := make(chan error, 1)
	go func() { newcomer <- m.addBesideHung(ctx, v, name) }()
	others := m.names[1:min(len(m.names), 6)]
	err = m.crashAll(ctx, v, crashedBesideHung, others, 500*time.Millisecond)
	if err := errors.Join(err, <-newcomer); err != nil {
		return err
	}
	if said := n.kubelet.unhealthy(); said != "" {
		say("  PLEG is not healthy: %s", said)
	}
	n.proxy.release()
	if err := n.remove(name); err != nil {
		return err
	}
	return m.awaitAgreement(ctx, v, len(m.names))
}

func (m *measurement) addBesideHung(ctx context.Context, v variant, name string) error {
	at := time.Now()
	if err := m.node.add(name); err != nil {
		return err
	}
	if err := m.node.kubelet.await(ctx, "runs a new pod beside one that hangs", func(running map[string]int) bool {
		_, ok := running[name]
		return ok
	}); err != nil {
		return err
	}
	m.results.add(v, startedBesideHung, time.Since(at))
	return nil
}

// freeze measures crashes while the runtime is frozen, from its thaw on.
func (m *measurement) freeze(ctx context.Context, v variant) (err error) {
	n := m.node
	defer n.end()
	if err := m.start(ctx, v); err != nil {
		return err
	}
	if err := wait(ctx, settle); err != nil {
		return err
	}
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
	err = wait(ctx, *frozen)
	thawed := time.Now()
	if err := errors.Join(err, n.daemon.Thaw()); err != nil {
		return err
	}
	for _, pod := range crashing {
		successor, found := n.awaitEvent(ctx, pod, created, thawed, patience)
		if !found {
			return fmt.Errorf("%s: the container of %s has no successor after a freeze", v.name, pod)
		}
		m.results.add(v, thawedAfterFreeze, successor.Sub(thawed))
	}
	return m.awaitAgreement(ctx, v, len(m.names))
}

// idle measures the CPU time of kubelet and runtime while nothing happens.
func (m *measurement) idle(ctx context.Context, chosen []variant) error {
	n := m.node
	for count := range strings.SplitSeq(*idlePods, ",") {
		wanted, err := strconv.Atoi(strings.TrimSpace(count))
		if err != nil {
			return fmt.Errorf("-idle-pods: %w", err)
		}
		for len(m.names) < wanted {
			m.names = append(m.names, fmt.Sprintf("pod%03d", len(m.names)))
			if err := n.add(m.names[len(m.names)-1]); err != nil {
				return err
			}
		}
		for _, v := range chosen {
			say("idle with %d pods: %s", wanted, v.name)
			if err := m.idleUnder(ctx, v, wanted); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measurement) idleUnder(ctx context.Context, v variant, count int) error {
	n := m.node
	defer n.end()
	if err := m.start(ctx, v); err != nil {
		return err
	}
	if err := wait(ctx, 3*settle); err != nil {
		return err
	}
	runtime, err := n.daemonPid()
	if err != nil {
		return err
	}
	pids := map[string]int{"kubelet": n.kubelet.cmd.Process.Pid, "containerd": runtime}
	before := make(map[string]time.Duration)
	for program, pid := range pids {
		if before[program], err = cpu(pid); err != nil {
			return err
		}
	}
	if err := wait(ctx, *idle); err != nil {
		return err
	}
	for program, pid := range pids {
		after, err := cpu(pid)
		if err != nil {
			return err
		}
		perSecond := time.Duration(float64(after-before[program]) / idle.Seconds())
		m.results.add(v, kind(fmt.Sprintf("idle with %d pods: CPU of %s, of each second", count, program)), perSecond)
	}
	return nil
}
