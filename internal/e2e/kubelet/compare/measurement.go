package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/measure"
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
	added   int    // pods, beside those of names
	handed  string // the pod that handOver has added last
	begun   bool   // a kubelet has had the pods running
}

// start starts a kubelet and waits until all pods run.
func (m *measurement) start(ctx context.Context, v variant) error {
	if err := m.node.run(v); err != nil {
		return err
	}
	return m.node.kubelet.await(ctx, "has all pods running", func(running map[string]int) bool {
		return len(running) == len(m.names)
	})
}

// under calls f while a kubelet runs, which it kills in the end. f must leave the node as
// it was: the kubelet agreeing with the runtime about the pods of m.names.
func (m *measurement) under(ctx context.Context, v variant, f func() error) error {
	defer m.node.end()
	if err := m.start(ctx, v); err != nil {
		return err
	}
	if m.begun && len(m.names) == *pods {
		m.results.add(v, restarted, time.Since(m.node.kubelet.started))
	}
	m.begun = true
	if err := measure.Wait(ctx, settle); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return errors.Join(m.awaitAgreement(ctx, v, len(m.names)), m.node.kubelet.backedOff(), m.judgeSuccessors(ctx, v))
}

// round measures the first crash of every container, and new pods.
func (m *measurement) round(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
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
		return m.node.kubelet.checkMetrics(ctx)
	})
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
	successor, err := m.awaitSuccessor(ctx, v, crashed, pod, at)
	if err != nil {
		return err
	}
	if e, told := n.awaitExit(ctx, a.id, settle); told {
		m.results.add(v, exited, e.told.Sub(at))
		m.results.add(v, followed, successor.Sub(e.told))
	}
	if had, found := n.kubelet.saidTaken(a.id); found {
		m.results.add(v, taken, had.Sub(at))
	}
	// Without exit events CRI announces the end before the successor is made, if it does so at all.
	if end, found := n.awaitEvent(ctx, pod, stopped, at, settle); found {
		m.results.add(v, announced, end.Sub(at))
		if !v.toldOfExits() {
			m.results.add(v, answered, successor.Sub(end))
		}
	}
	return nil
}

// awaitSuccessor measures from a time until the runtime has created another container of
// a pod, and returns when.
func (m *measurement) awaitSuccessor(ctx context.Context, v variant, what kind, pod string, since time.Time,
) (time.Time, error) {
	successor, found := m.node.awaitEvent(ctx, pod, created, since, patience)
	if !found {
		return successor, fmt.Errorf("%s: %s: the container of %s has no successor after %v; the log ends:\n%s", v.name, what,
			pod, patience, m.node.kubelet.tail())
	}
	m.results.add(v, what, successor.Sub(since))
	return successor, nil
}

// addAndRemove measures a new pod, until the kubelet says that it runs, and waits for its
// end.
func (m *measurement) addAndRemove(ctx context.Context, v variant) error {
	name, err := m.addNew(ctx, v, started)
	if err != nil {
		return err
	}
	if err := m.node.remove(name); err != nil {
		return err
	}
	return m.awaitGone(ctx, name)
}

// addNew measures a new pod, until the kubelet says that it runs.
func (m *measurement) addNew(ctx context.Context, v variant, what kind) (name string, err error) {
	m.added++
	name = fmt.Sprintf("new%03d", m.added)
	at := time.Now()
	if err := m.node.add(name); err != nil {
		return name, err
	}
	if err := m.node.kubelet.await(ctx, "runs a new pod", func(running map[string]int) bool {
		_, ok := running[name]
		return ok
	}); err != nil {
		return name, err
	}
	m.results.add(v, what, time.Since(at))
	return name, nil
}

// awaitGone waits until the runtime runs nothing of a pod.
func (m *measurement) awaitGone(ctx context.Context, name string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		list, err := m.node.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{labelPod: name + suffix},
				State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}},
		})
		if err != nil {
			return fmt.Errorf("looking for pod %s: %w", name, err)
		}
		if len(list.Items) == 0 {
			return nil
		}
		if err := measure.Wait(ctx, 50*time.Millisecond); err != nil {
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
			_, err := m.awaitSuccessor(ctx, v, what, pod, at)
			lost <- err
		})
		if err := measure.Wait(ctx, gap); err != nil {
			return err
		}
	}
	var errs []error
	for range pods {
		errs = append(errs, <-lost)
	}
	return errors.Join(errs...)
}
