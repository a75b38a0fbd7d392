package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"

	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/nodeagent/internal/manifest"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// node is a runtime and an agent in the test's bubble, with the bubble's time.
type node struct {
	t        *testing.T
	server   *criserver.Server
	conn     *grpc.ClientConn
	registry *prometheus.Registry
	agent    *Agent
	sink     *memory
	dir      string
	stop     func()
	prepare  func(*Agent)  // if not nil, start calls it before the agent runs
	lost     time.Duration // for how long after an exit the runtime does not report the exit code
	cut      chan struct{} // until it is closed, the first start of a "slow" or "late" container blocks

	mu     sync.Mutex
	exec   map[string]int // the exit code of commands, by container name; guarded by mu
	log    []string       // what happened to containers: "web started", …; guarded by mu
	at     []time.Time    // the time of each entry of log; guarded by mu
	logged []string       // lines of the agent's log; guarded by mu
	seen   map[string]int // for each container, the highest stage that published has seen; guarded by mu
}

// output is what every command in a container prints. It may be secret.
const output = "s3cret"

// memory is a Sink that keeps the pods in memory.
type memory struct {
	mu     sync.Mutex
	pods   map[string]*v1.Pod // by name; guarded by mu
	writes int                // guarded by mu
	err    error              // guarded by mu
}

func (m *memory) Write(pod *v1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.err == nil {
		m.pods[pod.Name] = pod
	}
	return m.err
}

func (m *memory) Remove(pod *v1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[pod.Name] != nil && m.pods[pod.Name].UID == pod.UID {
		delete(m.pods, pod.Name)
	}
	return m.err
}

// strictClock is a clock that never returns the same time twice, like a real clock. The clock of a
// bubble stands still while goroutines run.
type strictClock struct {
	clock.RealClock
	mu   sync.Mutex
	last time.Time // guarded by mu
}

func (c *strictClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.After(c.last) {
		c.last = now
	} else {
		c.last = c.last.Add(1)
	}
	return c.last
}

func (c *strictClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// inBubble runs a test with a node in a bubble, and then stops the node.
func inBubble(t *testing.T, test func(t *testing.T, n *node)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, dir: dir, exec: map[string]int{}, sink: &memory{pods: map[string]*v1.Pod{}}}
		var l *bufconn.Listener
		server, err := criserver.Start(criserver.WithPrograms(n.programs()),
			criserver.WithListener(func() (net.Listener, error) {
				l = bufconn.Listen(1 << 16)
				return l, nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		n.server = server
		n.conn, err = grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second, Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second,
			}}),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		n.start()
		test(t, n)
		n.stop()
		n.conn.Close()
		n.server.Stop()
	})
}

// start starts an agent, which adopts the statuses of the previous agent.
func (n *node) start() {
	var adopted []*v1.Pod
	for _, pod := range n.sink.pods {
		adopted = append(adopted, pod)
	}
	n.registry = prometheus.NewRegistry()
	logger := funcr.New(func(_, text string) {
		n.t.Log(time.Now().Format("04:05.000"), text)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.logged = append(n.logged, text)
	}, funcr.Options{Verbosity: 1})
	n.agent = New(Config{
		Reader: lossy{cri.NewRuntime(n.conn, cri.WithLogger(logger)), n.lost},
		NodeIP: "192.0.2.1", Runtime: runtime.New(n.conn, n.dir, ""),
		Sink: n.sink, Adopted: adopted, Registry: n.registry, Logger: logger,
		Clock: &strictClock{}, OnStatus: n.published,
	})
	if n.prepare != nil {
		n.prepare(n.agent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.agent.Run(ctx)
	}()
	n.stop = func() {
		cancel()
		<-done
	}
}

// programs returns the program of each image. When asked to end, "sleep" ends at once, "lazy" ends
// 5 s later, and "deaf" runs on. The arguments of "exit" are the exit code and a duration. "late"
// and "slow" start only after n.cut is closed.
func (n *node) programs() map[string]criserver.Program {
	main := func(run func(ctx context.Context, p *criserver.Process) int) criserver.Program {
		return criserver.Program{
			Main: func(ctx context.Context, p *criserver.Process) int {
				n.note(p.ContainerName + " started")
				code := run(ctx, p)
				n.note(fmt.Sprintf("%s exits %d", p.ContainerName, code))
				return code
			},
			Exec: func(ctx context.Context, p *criserver.Process) int {
				fmt.Fprint(p.Stdout, output)
				switch p.Args[0] {
				case "hang":
					<-ctx.Done()
				case "wait":
					pause(ctx, p.Args[1])
				}
				if p.Args[0] == "stop" {
					n.note(p.ContainerName + " is asked to stop")
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.exec[p.ContainerName]
			},
		}
	}
	asked := func(ctx context.Context, p *criserver.Process) int {
		select {
		case <-p.Terminate:
			return 0
		case <-ctx.Done():
			return 137
		}
	}
	sleep := main(asked)
	return map[string]criserver.Program{
		"sleep": sleep, "sleep2": sleep,
		"bad": {Start: func(*criserver.Process) error { return errors.New("no such file") }, Main: sleep.Main},
		"late": {Main: sleep.Main, Start: func(p *criserver.Process) error {
			if p.Attempt == 0 && len(p.Args) == 1 {
				<-n.cut
			}
			return nil
		}},
		"slow": {Main: sleep.Main, Start: func(p *criserver.Process) error {
			if p.Attempt > 0 {
				return nil
			}
			<-n.cut
			return context.Canceled
		}},
		"lazy": main(func(ctx context.Context, p *criserver.Process) int {
			code := asked(ctx, p)
			pause(ctx, "5s")
			return code
		}),
		"deaf": main(func(ctx context.Context, _ *criserver.Process) int { <-ctx.Done(); return 137 }),
		"exit": main(func(ctx context.Context, p *criserver.Process) int {
			code, _ := strconv.Atoi(p.Args[0])
			if len(p.Args) > 1 {
				pause(ctx, p.Args[1])
			}
			return code
		}),
		"twice": main(func(_ context.Context, p *criserver.Process) int {
			if p.Attempt < 2 {
				return 1
			}
			return 0
		}),
	}
}

// pause waits for a time, such as "2s", or for the end of ctx.
func pause(ctx context.Context, text string) {
	d, _ := time.ParseDuration(text)
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (n *node) note(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = append(n.log, text)
	n.at = append(n.at, time.Now())
}

func (n *node) notes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.log...)
}

func (n *node) lines() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.logged)
}

// times returns the intervals, in seconds, between the entries of n.log that equal text.
func (n *node) times(text string) (seconds []int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var last time.Time
	for i, s := range n.log {
		if s == text {
			if !last.IsZero() {
				seconds = append(seconds, int(n.at[i].Sub(last).Round(time.Second)/time.Second))
			}
			last = n.at[i]
		}
	}
	return seconds
}

func (n *node) setExec(container string, code int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.exec[container] = code
}

// pod returns a pod with the given name and the given specification in YAML.
func (n *node) pod(name, spec string) *v1.Pod {
	n.t.Helper()
	pod, err := manifest.Decode([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+"}\nspec:\n"+
		strings.ReplaceAll(spec, "\t", "  ")), "node")
	if err != nil {
		n.t.Fatal(err)
	}
	return pod
}

// run sets the pods that the agent runs, and lets time pass.
func (n *node) run(wait time.Duration, pods ...*v1.Pod) {
	n.agent.SetPods(pods)
	n.wait(wait)
}

func (n *node) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// status returns a pod's status, or a zero status if there is none.
func (n *node) status(name string) v1.PodStatus {
	for _, pod := range n.agent.statusManager.Pods() {
		if pod.Name == name {
			return pod.Status
		}
	}
	return v1.PodStatus{}
}

// brief describes a pod in one line: its phase, Ready if the pod is ready, NotInitialized if the
// pod is not initialized, and its containers.
func (n *node) brief(name string) string {
	s := n.status(name)
	text := string(s.Phase)
	for _, c := range s.Conditions {
		switch {
		case c.Type == v1.PodReady && c.Status == v1.ConditionTrue:
			text += " Ready"
		case c.Type == v1.PodInitialized && c.Status == v1.ConditionFalse:
			text += " NotInitialized"
		}
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			text += fmt.Sprintf("; %s %d %s", c.Name, c.RestartCount, state(c.State))
			if c.LastTerminationState.Terminated != nil {
				text += " after " + state(c.LastTerminationState)
			}
		}
	}
	return text
}

func state(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "?"
}

// published checks a new status. No container may go back to an earlier stage, for example from
// ended to running.
func (n *node) published(pod *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen == nil {
		n.seen = map[string]int{}
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			stage, last := 0, c.LastTerminationState.Terminated
			if c.State.Waiting != nil && strings.Contains(c.State.Waiting.Message, output) {
				n.t.Errorf("%s is published with output of a command: %v", c.Name, c.State.Waiting)
			}
			switch {
			case c.State.Running != nil:
				stage = 1
			case c.State.Terminated != nil || last != nil && last.ContainerID == c.ContainerID:
				stage = 2
			}
			key := fmt.Sprint(pod.UID, " ", pod.Status.StartTime, " ", c.Name, " ", c.ContainerID)
			if c.ContainerID != "" && stage < n.seen[key] {
				n.t.Errorf("%s is published at stage %d after %d", key, stage, n.seen[key])
			}
			n.seen[key] = max(n.seen[key], stage)
		}
	}
}

// want fails the test unless brief returns the expected text for the pod.
func (n *node) want(name, want string) {
	n.t.Helper()
	if got := n.brief(name); got != want {
		n.t.Errorf("%v %s:\n got %s\nwant %s", time.Now().Format("04:05"), name, got, want)
	}
}

var errOnPurpose = errors.New("on purpose")
