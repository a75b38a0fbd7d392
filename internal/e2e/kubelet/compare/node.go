package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// node is a container runtime, a proxy for it, and a folder of static pods. Kubelets come and go on it.
type node struct {
	daemon   *testnode.Daemon
	client   *testnode.Client
	proxy    *proxy
	dir      string
	programs string
	kubelet  *kubelet      // nil while none runs
	timeout  time.Duration // runtime-request-timeout of the next kubelets
	faults   bool          // the next kubelets speak to the proxy, so that calls can hang and fail

	source *cri.Runtime // of the runtime's exit events, for watchExits
	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse // of the runtime; guarded by mu
	exits  map[string]exit                      // that the runtime has told, by container; guarded by mu
	more   chan struct{}                        // closed at the next event or exit; guarded by mu
	judged int                                  // how many of events judgeSuccessors has seen
	stop   context.CancelFunc
}

const (
	// labelPod is the name of a pod in the labels of the kubelet's containers.
	labelPod = "io.kubernetes.pod.name"
	// suffix is what the kubelet adds to the names of static pods: its own.
	suffix = "-node"
)

func startNode(ctx context.Context, programs string) (n *node, err error) {
	n = &node{programs: programs, timeout: *requestTimeout, more: make(chan struct{}), exits: make(map[string]exit)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.daemon, err = testnode.Start(ctx); err != nil {
		return n, err
	}
	if n.client, err = n.daemon.Client(); err != nil {
		return n, err
	}
	// Below the daemon's folder, so that it is swept with it.
	n.dir = filepath.Join(n.daemon.Dir(), "kubelet")
	for _, d := range []string{"manifests", "logs", "root"} {
		if err := os.MkdirAll(filepath.Join(n.dir, d), 0o755); err != nil {
			return n, fmt.Errorf("making the kubelet's folder: %w", err)
		}
	}
	if n.proxy, err = startProxy(filepath.Join(n.daemon.Dir(), "p.sock"), n.daemon.Socket()); err != nil {
		return n, err
	}
	if n.source, err = cri.Dial(n.daemon.Endpoint(), cri.WithExitsDir(n.daemon.ExitsDir())); err != nil {
		return n, fmt.Errorf("connecting for the runtime's exit events: %w", err)
	}
	ctx, n.stop = context.WithCancel(ctx)
	go n.watch(ctx)
	go n.watchExits(ctx)
	return n, nil
}

// close ends everything and removes what the kubelet has left behind.
func (n *node) close() error {
	n.end()
	if n.stop != nil {
		n.stop()
	}
	var errs []error
	if n.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		errs = append(errs, n.client.RemovePods(ctx), n.client.Close())
	}
	if n.source != nil {
		errs = append(errs, n.source.Close())
	}
	if n.proxy != nil {
		errs = append(errs, n.proxy.close())
	}
	if n.daemon != nil {
		errs = append(errs, n.daemon.Close())
	}
	return errors.Join(errs...)
}

// run starts a kubelet; the one before must have been ended.
func (n *node) run(v variant) (err error) {
	socket := n.daemon.Socket()
	if n.faults || v.withoutEvents {
		socket = n.proxy.path
	}
	n.proxy.refuseEvents(v.withoutEvents)
	n.kubelet, err = startKubelet(v, n.programs, n.dir, "unix://"+socket, n.timeout)
	return err
}

// revive starts the kubelet again if it has ended by itself, as an init system would: a
// kubelet that finds no runtime at its start does.
func (n *node) revive(v variant) error {
	if !n.kubelet.ended() {
		return nil
	}
	say("  the kubelet has ended, and is started again; its log ends:\n%s", n.kubelet.tail())
	return n.run(v)
}

// end kills the kubelet, if one runs.
func (n *node) end() {
	if n.kubelet != nil {
		n.kubelet.kill()
		n.kubelet = nil
	}
}

// terminate ends the kubelet, if one runs, as an upgrade would.
func (n *node) terminate() error {
	if n.kubelet == nil {
		return nil
	}
	defer n.end()
	return n.kubelet.terminate()
}

// add writes the manifest of a pod.
func (n *node) add(name string) error { return n.write(name, testnode.StaticPod(name, nil)) }

func (n *node) write(name string, manifest map[string]any) error {
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	// Written beside and moved, so that no kubelet reads half of it.
	part := filepath.Join(n.dir, name+".part")
	if err := os.WriteFile(part, content, 0o644); err != nil {
		return fmt.Errorf("writing a manifest: %w", err)
	}
	return os.Rename(part, filepath.Join(n.dir, "manifests", name+".json"))
}

// remove removes the manifest of a pod.
func (n *node) remove(name string) error {
	return os.Remove(filepath.Join(n.dir, "manifests", name+".json"))
}

// app is the running container of a pod.
type app struct {
	id, sandbox string
	pid         int
}

// appOf returns the running container of a pod.
func (n *node) appOf(ctx context.Context, pod string) (app, error) {
	list, err := n.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{labelPod: pod + suffix},
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return app{}, fmt.Errorf("looking for the container of pod %s: %w", pod, err)
	}
	if len(list.Containers) != 1 {
		return app{}, fmt.Errorf("pod %s has %d running containers", pod, len(list.Containers))
	}
	c := list.Containers[0]
	pid, err := n.client.Pid(ctx, c.Id)
	return app{c.Id, c.PodSandboxId, pid}, err
}

// crash kills the container of a pod and returns when.
func (n *node) crash(a app) (time.Time, error) {
	at := time.Now()
	if err := unix.Kill(a.pid, unix.SIGKILL); err != nil {
		return at, fmt.Errorf("killing a container: %w", err)
	}
	return at, nil
}
