package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// churn starts and ends containers in a few pods, and records each step in the book. Faults are
// injected into the runtime, so any call may fail. After a failed call, churn finds out what the
// call did, and continues.
type churn struct {
	client   *testnode.Client
	fire     *fire
	book     *book
	audience *audience
	pods     []*testnode.Pod // the pods that stay until the end

	budget atomic.Int64 // how many more containers and pods the method work may run
	serial atomic.Int64 // makes names unique

	mu     sync.Mutex
	passed map[string]int // how many containers and pods of each kind were run, for the log
	hits   int            // how many calls failed because of faults
	lost   int            // how many exits the runtime lost: see Runtime.LosesExits
	// givenUp counts the containers that could not be created because the runtime mistook a live
	// pod for a dead one: see Runtime.GivesUp.
	givenUp int
}

// errGivenUp reports that the runtime mistook the live pod of a container for a dead one.
var errGivenUp = errors.New("the runtime gave up the pod")

func newChurn(client *testnode.Client, f *fire, b *book) *churn {
	return &churn{client: client, fire: f, book: b, passed: make(map[string]int)}
}

// uids returns the UIDs of the pods that stay until the end.
func (c *churn) uids() []types.UID {
	var uids []types.UID
	for _, p := range c.pods {
		uids = append(uids, p.UID)
	}
	return uids
}

// settle runs the pods that stay until the end. Each contains one container that also stays.
func (c *churn) settle(ctx context.Context, pods int) error {
	for i := range pods {
		p, err := c.runPod(ctx, fmt.Sprintf("stays-%d", i))
		if err != nil {
			return err
		}
		l, err := c.create(ctx, p, testnode.Sleep(), "stays", -1)
		if err != nil {
			return err
		}
		if err := c.start(ctx, l, false); err != nil {
			return err
		}
		c.pods = append(c.pods, p)
	}
	return nil
}

// work runs containers and pods of random kinds until the budget is used up.
func (c *churn) work(ctx context.Context) error {
	kinds := []struct {
		name   string
		weight int
		live   func(context.Context, *testnode.Pod) error
	}{
		{"flash", 35, c.flash},
		{"kept", 20, c.kept},
		{"killed", 20, c.killed},
		{"dropped", 15, c.dropped},
		{"stillborn", 5, c.stillborn},
		{"pod", 5, c.podLife},
	}
	for c.budget.Add(-1) >= 0 {
		lot := rand.IntN(100)
		for _, k := range kinds {
			if lot -= k.weight; lot >= 0 {
				continue
			}
			err := k.live(ctx, c.pods[rand.IntN(len(c.pods))])
			if err != nil && !errors.Is(err, errGivenUp) {
				return fmt.Errorf("a %s life: %w", k.name, err)
			}
			c.mu.Lock()
			if err == nil {
				c.passed[k.name]++
			} else {
				c.givenUp++
			}
			c.mu.Unlock()
			break
		}
	}
	return nil
}

// flash runs a container that exits at once, and removes it as soon as it has exited.
func (c *churn) flash(ctx context.Context, pod *testnode.Pod) error {
	code := rand.IntN(100)
	l, err := c.create(ctx, pod, testnode.Exit(code), "flash", code)
	if err != nil {
		return err
	}
	if err := c.start(ctx, l, true); err != nil {
		return err
	}
	if err := c.awaitExit(ctx, l); err != nil {
		return err
	}
	return c.remove(ctx, l)
}

// kept runs a container that exits at once, and removes it after its death and its exit code were
// reported.
func (c *churn) kept(ctx context.Context, pod *testnode.Pod) error {
	code := rand.IntN(100)
	l, err := c.create(ctx, pod, testnode.Exit(code), "kept", code)
	if err != nil {
		return err
	}
	if err := c.start(ctx, l, true); err != nil {
		return err
	}
	if err := c.awaitSent(ctx, l, func(t sent) bool { return !t.died.IsZero() }); err != nil {
		return err
	}
	if err := c.awaitExit(ctx, l); err != nil {
		return err
	}
	if err := c.read(ctx, pod, l); err != nil {
		return err
	}
	if err := c.awaitCode(ctx, pod, l); err != nil {
		return err
	}
	return c.remove(ctx, l)
}

// killed runs a container until its start is reported, kills it by a signal or through the runtime,
// and removes it after its death was reported.
func (c *churn) killed(ctx context.Context, pod *testnode.Pod) error {
	l, err := c.create(ctx, pod, testnode.Sleep(), "killed", 137)
	if err != nil {
		return err
	}
	if err := c.start(ctx, l, false); err != nil {
		return err
	}
	if err := c.awaitSent(ctx, l, sent.any); err != nil {
		return err
	}
	if err := c.kill(ctx, l); err != nil {
		return err
	}
	if err := c.awaitSent(ctx, l, func(t sent) bool { return !t.died.IsZero() }); err != nil {
		return err
	}
	if err := c.read(ctx, pod, l); err != nil {
		return err
	}
	if err := c.awaitCode(ctx, pod, l); err != nil {
		return err
	}
	if err := c.remove(ctx, l); err != nil {
		return err
	}
	if err := c.awaitSent(ctx, l, func(t sent) bool { return !t.removed.IsZero() }); err != nil {
		return err
	}
	return c.read(ctx, pod, l)
}

// dropped removes a container while it runs.
func (c *churn) dropped(ctx context.Context, pod *testnode.Pod) error {
	l, err := c.create(ctx, pod, testnode.Sleep(), "dropped", 137)
	if err != nil {
		return err
	}
	if err := c.start(ctx, l, false); err != nil {
		return err
	}
	return c.remove(ctx, l)
}

// stillborn creates a container and removes it without starting it.
func (c *churn) stillborn(ctx context.Context, pod *testnode.Pod) error {
	l, err := c.create(ctx, pod, testnode.Sleep(), "stillborn", -1)
	if err != nil {
		return err
	}
	return c.remove(ctx, l)
}

// podLife creates a pod, runs a container in it, and removes the pod.
func (c *churn) podLife(ctx context.Context, _ *testnode.Pod) error {
	pod, err := c.runPod(ctx, fmt.Sprintf("pod-%d", c.serial.Add(1)))
	if err != nil {
		return err
	}
	sandbox, err := c.sandboxLife(pod)
	if err != nil {
		return err
	}
	l, err := c.create(ctx, pod, testnode.Sleep(), "in a pod that goes", 137)
	if err != nil {
		return err
	}
	if err := c.start(ctx, l, false); err != nil {
		return err
	}
	for _, id := range []*life{sandbox, l} {
		if err := c.awaitSent(ctx, id, sent.any); err != nil {
			return err
		}
	}
	c.book.note(l, mayDie)
	c.book.note(sandbox, mayDie)
	if err := c.insist(ctx, func() error { return c.client.StopPod(ctx, pod) }); err != nil {
		return err
	}
	if err := c.remove(ctx, l); err != nil {
		return err
	}
	c.book.note(sandbox, func(l *life) { l.removed = time.Now() })
	if err := c.insist(ctx, func() error { return c.client.RemovePod(ctx, pod) }); err != nil {
		return err
	}
	for _, id := range []*life{sandbox, l} {
		if err := c.awaitSent(ctx, id, func(t sent) bool { return !t.removed.IsZero() }); err != nil {
			return err
		}
	}
	return nil
}

func (c *churn) sandboxLife(pod *testnode.Pod) (*life, error) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	l, ok := c.book.lives[pod.SandboxID]
	if !ok {
		return nil, errors.New("the sandbox is not in the book")
	}
	return l, nil
}

// runPod runs a sandbox. If a failed call left a sandbox behind, runPod records it in the book and
// removes it.
func (c *churn) runPod(ctx context.Context, name string) (*testnode.Pod, error) {
	for {
		asked := time.Now()
		pod, err := c.client.RunPod(ctx, "churn", name)
		if err == nil {
			l := c.book.open(pod.SandboxID, "sandbox "+name, asked)
			c.book.note(l, func(l *life) { l.started = asked })
			return pod, nil
		}
		if err := c.recover(ctx, err); err != nil {
			return nil, err
		}
		var left *runtimeapi.ListPodSandboxResponse
		if err := c.insist(ctx, func() (err error) {
			left, err = c.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return err
		}); err != nil {
			return nil, err
		}
		for _, s := range left.Items {
			if s.Metadata.Name != name {
				continue
			}
			l := c.book.open(s.Id, "failed sandbox "+name, asked)
			c.book.note(l, func(l *life) { l.started, l.mortal, l.removed = asked, asked, time.Now() })
			if err := c.insist(ctx, func() error {
				return c.client.RemovePod(ctx, &testnode.Pod{SandboxID: s.Id, Name: name})
			}); err != nil {
				return nil, err
			}
		}
	}
}

// create creates a container with a unique name. After a failed call, create finds the container by
// this name.
func (c *churn) create(
	ctx context.Context, pod *testnode.Pod, command []string, what string, code int,
) (*life, error) {
	for {
		name := fmt.Sprintf("c-%d", c.serial.Add(1))
		asked := time.Now()
		id, err := c.client.Create(ctx, pod, testnode.Container{Name: name, Command: command})
		if err != nil {
			if c.fire.daemon.Runtime().GivesUp && status.Code(unwrapped(err)) == codes.NotFound {
				return nil, fmt.Errorf("%w: %w", errGivenUp, err)
			}
			if err := c.recover(ctx, err); err != nil {
				return nil, err
			}
			if id, err = c.find(ctx, name); err != nil {
				return nil, err
			}
		}
		if id != "" {
			l := c.book.open(id, what, asked)
			c.book.note(l, func(l *life) { l.code = code })
			return l, nil
		}
	}
}

// find returns the ID of the container with this name, or "".
func (c *churn) find(ctx context.Context, name string) (id string, err error) {
	err = c.insist(ctx, func() error {
		r, err := c.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		for _, l := range r.Containers {
			if l.Metadata.Name == name {
				id = l.Id
			}
		}
		return nil
	})
	return id, err
}

// start starts a container. If the call fails, the test accepts every later state of the container.
func (c *churn) start(ctx context.Context, l *life, exits bool) error {
	c.book.note(l, func(l *life) {
		l.started, l.crashes = time.Now(), c.fire.crashes.Load()
		if exits {
			l.mortal = l.started
		}
	})
	if err := c.client.Start(ctx, l.id); err != nil {
		c.book.note(l, func(l *life) { l.mortal, l.code, l.failed = l.started, -1, true })
		return c.recover(ctx, err)
	}
	return nil
}

// mayDie records that a container may die from now on. If an earlier time is recorded, mayDie keeps
// that time.
func mayDie(l *life) {
	if l.mortal.IsZero() {
		l.mortal = time.Now()
	}
}

// kill ends a running container by a signal or through the runtime.
func (c *churn) kill(ctx context.Context, l *life) error {
	c.book.note(l, mayDie)
	if rand.IntN(2) == 0 {
		// If the signal cannot be sent, the container has already ended or the runtime does not
		// answer. Then the runtime is asked to stop the container.
		if pid, err := c.client.Pid(ctx, l.id); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
			return c.awaitExit(ctx, l)
		}
	}
	if err := c.insist(ctx, func() error { return c.client.Stop(ctx, l.id) }); err != nil {
		return err
	}
	return c.awaitExit(ctx, l)
}

func (c *churn) remove(ctx context.Context, l *life) error {
	c.book.note(l, func(l *life) { l.removed = time.Now() })
	err := c.insist(ctx, func() error { return c.client.Remove(ctx, l.id) })
	c.noteCrash(l)
	return err
}

// noteCrash records whether the runtime has ended since the container was created or started.
func (c *churn) noteCrash(l *life) {
	c.book.note(l, func(l *life) { l.crashed = l.crashes != c.fire.crashes.Load() })
}

// awaitExit waits until the runtime shows a container as exited. It also returns in two other
// cases: the container's start failed and the container is not running, or the runtime has lost the
// container's exit.
func (c *churn) awaitExit(ctx context.Context, l *life) error {
	for deadline := time.Now().Add(patience); ; {
		var r *runtimeapi.ContainerStatusResponse
		if err := c.insist(ctx, func() (err error) {
			r, err = c.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: l.id})
			return err
		}); err != nil {
			return err
		}
		if r.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			c.noteCrash(l)
			if b, _ := c.book.get(l.id); !b.mayHaveExitedWith(int(r.Status.ExitCode)) {
				return fmt.Errorf("the runtime says that container %.12s (%s) exited with code %d, not %d", l.id, b.what,
					r.Status.ExitCode, b.code)
			}
			return nil
		}
		if b, _ := c.book.get(l.id); b.failed && r.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			return nil
		}
		if time.Now().After(deadline) {
			if c.hasLost(ctx, l) {
				return nil
			}
			return fmt.Errorf("container %.12s (%s) does not exit: the runtime says %s", l.id, l.what, r.Status.State)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for container %.12s to exit: %w", l.id, ctx.Err())
		}
	}
}

// awaitSent waits until the condition what holds for a container's events at each eager subscriber.
// It fails if an event is lost. It does not wait if the container's start failed.
func (c *churn) awaitSent(ctx context.Context, l *life, what func(sent) bool) error {
	if b, _ := c.book.get(l.id); b.failed {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, eager := range c.audience.eager {
		if err := eager.await(waiting, l.id, what); err != nil {
			if c.hasLost(ctx, l) {
				return nil
			}
			return fmt.Errorf("lost: %w", err)
		}
	}
	return nil
}

// awaitCode waits until each eager subscriber was sent an event with the container's exit code.
func (c *churn) awaitCode(ctx context.Context, pod *testnode.Pod, l *life) error {
	err := c.awaitSent(ctx, l, sent.hasCode)
	if err == nil {
		return nil
	}
	var cached []string
	for _, cache := range c.audience.caches {
		s, _ := cache.Get(pod.UID) // Get may return a status together with an error
		if st := containerIn(s, l.id); st != nil {
			cached = append(cached, fmt.Sprintf("%s with code %d", st.State, st.ExitCode))
		}
	}
	return fmt.Errorf("no event has the exit code, and the caches have %q: %w", cached, err)
}

// hasLost reports whether the runtime has lost the end of a container. This can happen if
// Runtime.LosesExits is true: the runtime was killed during the container's life, and now shows the
// container as unknown. From then on, every event of the container counts as correct.
func (c *churn) hasLost(ctx context.Context, l *life) bool {
	c.noteCrash(l)
	if b, _ := c.book.get(l.id); !c.fire.daemon.Runtime().LosesExits || !b.crashed || b.mortal.IsZero() {
		return false
	}
	r, err := c.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: l.id})
	if err != nil || r.Status.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		return false
	}
	c.book.note(l, func(l *life) { l.failed = true })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost++
	return true
}

// read waits until each cache has a status of the pod that was observed after the call of read. It
// fails if this status does not show the last change that the test made to the container.
func (c *churn) read(ctx context.Context, pod *testnode.Pod, l *life) error {
	for _, cache := range c.audience.caches {
		if err := c.readFrom(ctx, cache, pod, l); err != nil {
			return err
		}
	}
	return nil
}

func (c *churn) readFrom(ctx context.Context, cache *pleg.PodCache, pod *testnode.Pod, l *life) error {
	b, _ := c.book.get(l.id)
	reading, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, _, err := cache.LookupNewerThan(reading, pod.UID, time.Now())
	if reading.Err() != nil {
		return fmt.Errorf("lost: a reader of pod %s waits for ever: %w", pod.UID, reading.Err())
	}
	if err != nil {
		return nil // an inspection failed because of a fault
	}
	st := containerIn(s, l.id)
	switch {
	case !b.removed.IsZero():
		if st != nil {
			return fmt.Errorf("stale: container %.12s was removed, and a reader that came later sees it as %s", l.id, st.State)
		}
	case b.failed:
	case st == nil:
		return fmt.Errorf("stale: container %.12s has exited and was not removed, and a reader does not see it", l.id)
	case st.State != pleg.ContainerStateExited || !b.mayHaveExitedWith(st.ExitCode):
		return fmt.Errorf("stale: container %.12s has exited with code %d, and a reader that came later sees it as %s "+
			"with code %d", l.id, b.code, st.State, st.ExitCode)
	}
	return nil
}

// insist repeats a call until it succeeds or has failed too often.
func (c *churn) insist(ctx context.Context, call func() error) error {
	for failures := 0; ; failures++ {
		err := call()
		if err == nil {
			return nil
		}
		if code := status.Code(unwrapped(err)); code != codes.Unavailable && failures >= 100 {
			return fmt.Errorf("failed %d times: %w", failures, err)
		}
		if err := c.recover(ctx, err); err != nil {
			return err
		}
	}
}

// unwrapped returns the gRPC error inside err, or err itself.
func unwrapped(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Err()
	}
	return err
}

// recover counts a failed call, and waits until the runtime answers again.
func (c *churn) recover(ctx context.Context, cause error) error {
	c.mu.Lock()
	c.hits++
	c.mu.Unlock()
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.client.WaitReady(waiting); err != nil {
		return fmt.Errorf("the runtime does not come back after %w: %w", cause, err)
	}
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
	}
	return ctx.Err()
}
