package attribution_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/attribution"
	"github.com/kubepleg/pleg/plegtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ticking is a clock that never returns the same time twice, unlike the clock of a bubble.
type ticking struct {
	clock.RealClock
	ticks atomic.Int64
}

func (c *ticking) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ticks.Add(1))) }

// node is a fake runtime with a generator, an Attributor and a folder of processes, in a bubble.
// Only requested lists find pods.
type node struct {
	*plegtest.Runtime
	*attribution.Attributor
	g    *pleg.GenericPLEG
	t    *testing.T
	proc string
}

// onNode runs a test on a node.
func onNode(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{Runtime: plegtest.NewRuntime(), t: t, proc: t.TempDir()}
		n.g = pleg.New(n.Runtime, pleg.WithClock(&ticking{}), pleg.WithRelistPeriod(time.Hour),
			pleg.WithRelistThreshold(2*time.Hour))
		n.g.Start(t.Context())
		defer n.g.Stop()
		defer n.Heal()
		time.Sleep(time.Minute) // a full list follows the connection of the stream
		n.ResetCalls()
		n.Attributor = attribution.New(n.g, n.proc)
		test(t, n)
	})
}

// process sets the cgroup and the start of a process.
func (n *node) process(pid int, cgroups string, started int) {
	n.t.Helper()
	n.stat(pid, cgroups, started, 0x400000)
}

// stat sets also the kernel's flags of a process.
func (n *node) stat(pid int, cgroups string, started, flags int) {
	n.t.Helper()
	dir := filepath.Join(n.proc, strconv.Itoa(pid))
	stat := fmt.Sprintf("%d (a) b (c\n) S 1 1 1 0 -1 %d %s%d 0 0\n", pid, flags, strings.Repeat("0 ", 12), started)
	if err := errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroups), 0o600),
		os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600),
	); err != nil {
		n.t.Fatal(err)
	}
}

// ends ends a process.
func (n *node) ends(pid int) {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.proc, strconv.Itoa(pid))); err != nil {
		n.t.Fatal(err)
	}
}

// relist makes a full list.
func (n *node) relist() {
	n.t.Helper()
	if err := n.g.Relist(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

// listed fails the test unless this many lists of a pod and of all pods have been made.
func (n *node) listed(pod, all int) {
	n.t.Helper()
	if gotPod, gotAll := n.Calls(plegtest.GetPod), n.Calls(plegtest.GetPods); gotPod != pod || gotAll != all {
		n.t.Errorf("%d pod lists and %d full lists; want %d and %d", gotPod, gotAll, pod, all)
	}
}

// id returns the ID of a container.
func id(i int) string { return fmt.Sprintf("%064x", i) }

// in returns the cgroup file of a process in a container.
func in(pod types.UID, container string) string {
	return fmt.Sprintf("0::/kubepods/pod%s/%s\n", pod, container)
}

// described returns the pod and the number of the container, or the error of this package.
func described(result attribution.Result, err error) string {
	for _, known := range []error{attribution.ErrNoProcess, attribution.ErrNoContainer, attribution.ErrOwnContainer,
		attribution.ErrUnknownContainer, attribution.ErrNotSearched} {
		if !errors.Is(err, known) {
			continue
		}
		isSearch := errors.Is(known, attribution.ErrUnknownContainer) || errors.Is(known, attribution.ErrNotSearched)
		if hasID := result.ContainerID != ""; hasID != isSearch || result.Pod != nil {
			return "another result with " + known.Error()
		}
		return known.Error()
	}
	switch {
	case err != nil:
		return err.Error()
	case result.Container == nil:
		return string(result.Pod.ID) + ", sandbox"
	case result.Container.ID.ID != result.ContainerID:
		return "another container"
	}
	return string(result.Pod.ID) + ", " + strings.TrimLeft(result.ContainerID, "0")
}

// wants fails the test unless a look-up has this result.
func wants(t *testing.T, what, want string, result attribution.Result, err error) {
	t.Helper()
	if got := described(result, err); got != want {
		t.Errorf("%s: %s; want %s", what, got, want)
	}
}

const unknown, notSearched = "unknown container", "could not search for container"

// If a container is new, one list finds it. If it is unknown, it is searched for once in ten
// seconds. If a process is in the sandbox, as with gVisor, there is no container.
func TestLookUps(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		n.SetSandbox("5d4f", id(2), pleg.ContainerStateRunning)
		for _, step := range []struct {
			cgroups, want string
			pod, all      int // lists of a pod and of all pods so far
		}{
			{"0::/init.scope\n", "in no container of a pod", 0, 0},
			{"0::/kubepods/pod5d4f/crio-conmon-" + id(1) + ".scope\n", "in no container of a pod", 0, 0},
			{in("5d4f", id(1)), "5d4f, 1", 1, 0},
			{in("5d4f", id(1)), "5d4f, 1", 1, 0},
			{in("5d4f", id(2)), "5d4f, sandbox", 1, 0},
			{in("5d4f", "kata_"+id(2)), "5d4f, sandbox", 1, 0},
			{"12:pids:/\n4:memory:/kubepods/pod5d4f/" + id(1) + "\n1:name=systemd:/kubepods/pod5d4f/" + id(1) + "/a\n0::/\n",
				"5d4f, 1", 1, 0},
			{in("5d4f", id(1)) + in("5d4f", id(2)),
				"process 7: the cgroups name two containers, " + id(1) + " and " + id(2), 1, 0},
			{in("5d4f", id(3)), unknown, 2, 0},
			{in("5d4f", id(3)), unknown, 2, 0},
			{in("77", id(3)), unknown, 2, 0},
			{"0::/../crio-" + id(4) + ".scope\n", unknown, 2, 1},
			{"0::/../crio-" + id(4) + ".scope\n", unknown, 2, 1},
		} {
			n.process(7, step.cgroups, 0)
			result, err := n.Process(t.Context(), 7, 0)
			wants(t, step.cgroups, step.want, result, err)
			n.listed(step.pod, step.all)
		}

		n.SetContainer("5d4f", id(3), pleg.ContainerStateRunning)
		result, err := n.Cgroup(t.Context(), in("5d4f", id(3)))
		wants(t, "remembered", unknown, result, err)
		n.listed(2, 1)
		time.Sleep(10 * time.Second)
		result, err = n.Cgroup(t.Context(), in("5d4f", id(3)))
		wants(t, "searched for again", "5d4f, 3", result, err)
		n.listed(3, 1)

		n.SetContainer("5d4f", id(4), pleg.ContainerStateRunning)
		n.relist()
		result, err = n.Cgroup(t.Context(), "/../crio-"+id(4)+".scope")
		wants(t, "found by the generator", "5d4f, 4", result, err)
		n.listed(3, 2)

		// For a minute, a container that is gone is found. Then it is unknown, and no other container is found.
		n.RemoveContainer("5d4f", id(4))
		for _, want := range []string{"5d4f, 4", unknown} {
			n.relist()
			result, err = n.Cgroup(t.Context(), in("5d4f", id(4)))
			if want != unknown && (err != nil || result.Pod.GoneAt.IsZero()) {
				t.Errorf("the container is gone, but %v is the pod of the look-up", result.Pod)
			}
			wants(t, "gone", want, result, err)
			time.Sleep(time.Minute)
		}
	})
}

// A file that the kernel has not written, or not whole, names no container.
func TestMalformedFiles(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		line := in("5d4f", id(1))
		for content, want := range map[string]string{
			"":                    "the cgroup file is empty",
			"\x7fELF\x02\x00\x01": "no line of a cgroup file",
			line + "4:mem":        "no line of a cgroup file",
			line + "\n":           "no line of a cgroup file",
			line[:40]:             "in no container of a pod",
			strings.Repeat("5:memory:/\n", 6000) + line: "cgroup is larger than 65536 bytes",
			"0::/" + strings.Repeat("a", 60_000) + "\n": "in no container of a pod",
			strings.TrimSuffix(line, "\n"):              "5d4f, 1",
		} {
			n.process(7, content, 0)
			if got := described(n.Process(t.Context(), 7, 0)); !strings.Contains(got, want) {
				t.Errorf("%.60q: %s; want %s", content, got, want)
			}
		}
		n.process(7, line, 0)
		if err := os.WriteFile(filepath.Join(n.proc, "7", "stat"), []byte("7 (a) S 1 2"), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := n.Process(t.Context(), 7, 90)
		wants(t, "a short stat", "no such process", result, err)
	})
}

// If a program runs in a cgroup namespace of its own, a process may be in the program's container.
func TestPrivateNamespace(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		const none, own = "in no container of a pod", "may be in this program's own container"
		for _, step := range []struct {
			self, namespace, cgroup string
			want                    string
		}{
			{"", "", "/", own},
			{"", "", "/init.scope", none},
			{"/", "cgroup:[4026533000]", "/", own},
			{"/", "cgroup:[4026533000]", "/init.scope", own},
			{"/", "cgroup:[4026533000]", "/..", none},
			{"/", "cgroup:[4026533000]", "/../../../../system.slice/kubelet.service", none},
			{"/", "cgroup:[4026533000]", "/../crio-" + id(1) + ".scope", "5d4f, 1"},
			{"/", "cgroup:[4026533000]", "/../../pod5d4f/" + id(1), "5d4f, 1"},
			{"/", "cgroup:[4026533000]", "/../../../burstable/pod5d4f/" + id(1), "5d4f, 1"},
			{"/system.slice/kubelet.service", "cgroup:[4026533000]", "/init.scope", none}, // a node in a container
			{"/", "cgroup:[4026531835]", "/", none},                                       // the host
			{"/", "cgroup:[4026531835]", "/init.scope", none},
		} {
			n.ends(0)
			if err := errors.Join(os.RemoveAll(filepath.Join(n.proc, "self")),
				os.MkdirAll(filepath.Join(n.proc, "self", "ns"), 0o700)); err != nil {
				t.Fatal(err)
			}
			if step.self != "" {
				if err := errors.Join(
					os.WriteFile(filepath.Join(n.proc, "self", "cgroup"), []byte("0::"+step.self+"\n"), 0o600),
					os.Symlink(step.namespace, filepath.Join(n.proc, "self", "ns", "cgroup"))); err != nil {
					t.Fatal(err)
				}
			}
			n.process(7, "0::"+step.cgroup+"\n", 0)
			result, err := attribution.New(n.g, n.proc).Process(t.Context(), 7, 0)
			wants(t, fmt.Sprint(step), step.want, result, err)
		}
	})
}

// found is the result of a look-up in another goroutine.
type found struct {
	result attribution.Result
	err    error
}

// begin begins a look-up. It returns when the look-up waits for the runtime.
func (n *node) begin(ctx context.Context, pid int, startTime uint64) <-chan found {
	ch := make(chan found, 1)
	go func() {
		result, err := n.Process(ctx, pid, startTime)
		ch <- found{result, err}
	}()
	synctest.Wait()
	return ch
}

// If a process ends during a look-up, and another process gets its PID, no result is about the other.
func TestPIDIsReused(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		n.SetPod(plegtest.NewPod("77", plegtest.Running(id(2))))
		for startTime, want := range map[uint64]string{0: "no such process", 90: "5d4f, 1"} {
			n.process(7, in("5d4f", id(1)), 90)
			n.Attributor = attribution.New(n.g, n.proc)
			n.RemovePod("5d4f")
			n.relist()
			time.Sleep(2 * time.Minute) // until the cache has forgotten it
			n.relist()
			n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
			heal := n.Block(plegtest.GetPod, "5d4f")
			lookUp := n.begin(t.Context(), 7, startTime)
			n.ends(7)
			n.process(7, in("77", id(2)), 91)
			heal()
			got := <-lookUp
			wants(t, fmt.Sprint("reused during the call, start ", startTime), want, got.result, got.err)
		}
		result, err := n.Process(t.Context(), 7, 90)
		wants(t, "reused before the call", "no such process", result, err)
		result, err = n.Process(t.Context(), 7, 91)
		wants(t, "the other process", "77, 2", result, err)
		result, err = n.Process(t.Context(), 8, 0)
		wants(t, "no process", "no such process", result, err)
	})
}

// With cgroup v1, a process that is ending is in no container. It has ended, and was not on the host.
func TestProcessIsEnding(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		const root, exiting = "4:memory:/\n0::/\n", 0x400004
		n.stat(7, root, 90, exiting)
		result, err := n.Process(t.Context(), 7, 0)
		wants(t, "ending", "no such process", result, err)
		n.stat(7, in("5d4f", id(1)), 90, exiting)
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		n.process(8, in("5d4f", id(1)), 80)
		heal := n.Block(plegtest.GetPod, "5d4f")
		with, without := n.begin(t.Context(), 7, 90), n.begin(t.Context(), 8, 0)
		n.stat(7, root, 90, exiting)
		n.stat(8, root, 80, exiting)
		heal()
		got := <-with
		wants(t, "ending during the look-up, with its start", "5d4f, 1", got.result, got.err)
		got = <-without
		wants(t, "ending during the look-up", "no such process", got.result, got.err)
	})
}

// If a process moves to another container during a look-up, the result is the other container.
func TestProcessMoves(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1)), plegtest.Running(id(2))))
		n.process(7, in("5d4f", id(1)), 0)
		heal := n.Block(plegtest.GetPod, "5d4f")
		lookUp := n.begin(t.Context(), 7, 0)
		n.process(7, in("5d4f", id(2)), 0)
		heal()
		got := <-lookUp
		wants(t, "moved", "5d4f, 2", got.result, got.err)

		n.process(7, in("77", id(3)), 90)
		heal = n.Block(plegtest.GetPod, "77")
		lookUp = n.begin(t.Context(), 7, 90)
		n.process(7, "0::/init.scope\n", 90)
		heal()
		got = <-lookUp
		wants(t, "moved away", "in no container of a pod", got.result, got.err)
	})
}

// Look-ups of one new container share a list. If the caller that makes it gives up, another goes on.
func TestLookUpsShareASearch(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		for i, givesUp := range []bool{false, true} {
			uid := types.UID(strconv.Itoa(i))
			n.SetPod(plegtest.NewPod(uid, plegtest.Running(id(i))))
			n.process(i, in(uid, id(i)), 0)
			heal := n.Block(plegtest.GetPod, uid)
			ctx, cancel := context.WithCancelCause(t.Context())
			first := n.begin(ctx, i, 0)
			var others []<-chan found
			for range 50 {
				others = append(others, n.begin(t.Context(), i, 0))
			}
			ended, end := context.WithCancelCause(t.Context())
			late := n.begin(ended, i, 0)
			end(errors.New("no patience"))
			got := <-late
			wants(t, "a context that ends", notSearched, got.result, got.err)
			if got.err == nil || !strings.HasSuffix(got.err.Error(), "no patience") {
				t.Error(got.err)
			}
			if givesUp {
				cancel(errors.New("given up"))
				got := <-first
				wants(t, "the first, which has given up", notSearched, got.result, got.err)
				synctest.Wait()
			} else {
				others = append(others, first)
			}
			heal()
			for _, other := range others {
				got := <-other
				wants(t, "given up: "+strconv.FormatBool(givesUp), fmt.Sprintf("%d, %s", i, strings.TrimLeft(id(i), "0")),
					got.result, got.err)
			}
			if lists, most := n.PodCalls(plegtest.GetPod, uid), i+1; lists > most {
				t.Errorf("%d lists, more than %d", lists, most)
			}
			cancel(nil)
		}
	})
}

// A thousand processes are looked up at once. Half of them are in new containers, the others in
// unknown containers. All answers are right, and cost at most ten pod lists and two full lists.
func TestStorm(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		for i := 0; i < 1000; i += 2 {
			n.SetPod(plegtest.NewPod(types.UID(fmt.Sprint(i, "a")), plegtest.Running(id(i))))
		}
		began := time.Now()
		for range 2 {
			var callers sync.WaitGroup
			for i := range 1000 {
				callers.Go(func() {
					uid := types.UID(fmt.Sprint(i, "a"))
					want := unknown
					if i%2 == 0 {
						want = string(uid) + ", " + strings.TrimLeft(id(i), "0")
					}
					result, err := n.Cgroup(t.Context(), in(uid, id(i)))
					wants(t, "process", want, result, err)
				})
			}
			callers.Wait()
			if n.Calls(plegtest.GetPod) > 10 || n.Calls(plegtest.GetPods) > 2 || time.Since(began) > 2*time.Second {
				t.Errorf("%d pod lists and %d full lists in %v", n.Calls(plegtest.GetPod), n.Calls(plegtest.GetPods),
					time.Since(began))
			}
		}
	})
}

// For ten seconds, sixteen callers look up unknown containers, each in another pod. The Attributor's
// limit of lists per second also holds for full lists that the generator makes because of its requests.
func TestConcurrentSearches(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		began := time.Now()
		var callers sync.WaitGroup
		for caller := range 16 {
			callers.Go(func() {
				for i := 0; time.Since(began) < 10*time.Second; i++ {
					result, err := n.Cgroup(t.Context(), in(types.UID(fmt.Sprint(caller, "a", i)), id(16*i+caller)))
					wants(t, "process", unknown, result, err)
				}
			})
		}
		callers.Wait()
		if pod, all := n.Calls(plegtest.GetPod), n.Calls(plegtest.GetPods); pod > 120 || all > 12 {
			t.Errorf("%d pod lists and %d full lists in %v", pod, all, time.Since(began))
		}
	})
}

// Unknown containers are forgotten when there are too many of them.
func TestUnknownContainersAreBounded(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		lookUp := func(i int) string {
			return described(n.Cgroup(t.Context(), "/../crio-"+id(i)+".scope"))
		}
		var callers sync.WaitGroup
		for i := range 10_001 {
			callers.Go(func() { lookUp(i) })
		}
		callers.Wait()
		before := n.Calls(plegtest.GetPods)
		lookUp(0)
		lookUp(1)
		if lists := n.Calls(plegtest.GetPods) - before; lists == 0 {
			t.Error("more than 10,000 unknown containers are remembered")
		}
	})
}

// A look-up does not rely on a list that began before the look-up.
func TestLookUpDuringAFullList(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.process(6, "0::/../crio-"+id(6)+".scope\n", 0)
		n.process(7, "0::/../crio-"+id(7)+".scope\n", 0)
		heal := n.Inject(plegtest.Fault{Method: plegtest.GetPods, Times: 1, Block: true, Stale: true})
		before := n.begin(t.Context(), 6, 0)
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(7))))
		during := n.begin(t.Context(), 7, 0)
		heal()
		got := <-before
		wants(t, "before the list", unknown, got.result, got.err)
		got = <-during
		wants(t, "during the list", "5d4f, 7", got.result, got.err)
		n.listed(0, 2)
	})
}

// A caller with a short deadline does not wait for a list that begins later. A caller with a longer one does.
func TestStormInALoop(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		began := time.Now()
		lookUp := func(i int, patience time.Duration) string {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return described(n.Cgroup(ctx, in(types.UID(fmt.Sprint(i, "b")), id(i))))
		}
		for i := range 1000 {
			want := unknown
			if i > 10 { // after ten pod lists and a full list
				want = notSearched
			}
			if got := lookUp(i, 50*time.Millisecond); got != want {
				t.Errorf("%d: %s, want %s", i, got, want)
			}
		}
		n.listed(10, 1)
		if took := time.Since(began); took > 0 {
			t.Errorf("1,000 look-ups have waited for %v", took)
		}
		n.SetPod(plegtest.NewPod("999b", plegtest.Running(id(999))))
		if got := lookUp(999, time.Hour); got != "999b, 3e7" {
			t.Errorf("with more time: %s", got)
		}
		n.listed(10, 2)
	})
}

// With a context that has ended, a look-up makes no list and leaves all lists to other look-ups.
func TestContextHasEnded(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 20 {
			result, err := n.Cgroup(ctx, in("77", id(100+i)))
			wants(t, "ended", notSearched, result, err)
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		synctest.Wait()
		n.listed(0, 0)
		result, err := n.Cgroup(t.Context(), in("5d4f", id(1)))
		wants(t, "another context", "5d4f, 1", result, err)
		n.listed(1, 0)
	})
}

// If the runtime does not answer, a look-up ends after two seconds. If only the inspection of the
// pod is stuck, the look-up finds the pod.
func TestRuntimeIsStuck(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.SetPod(plegtest.NewPod("5d4f", plegtest.Running(id(1))))
		n.SetPod(plegtest.NewPod("77", plegtest.Running(id(2))))
		n.Block(plegtest.GetPod, "5d4f")
		n.Block(plegtest.GetPodStatus, "77")
		n.Block(plegtest.GetPods, plegtest.AnyPod)
		for cgroup, want := range map[string]string{
			in("5d4f", id(1)): notSearched, in("77", id(2)): "77, 2", "/../" + id(3): notSearched,
		} {
			for _, wait := range []time.Duration{2 * time.Second, 0} { // the second look-up makes no search
				began := time.Now()
				result, err := n.Cgroup(t.Context(), cgroup)
				wants(t, cgroup, want, result, err)
				if took := time.Since(began); took != wait {
					t.Errorf("%s: %v, want %v", cgroup, took, wait)
				}
				if want == notSearched && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", cgroup, err)
				}
			}
		}
	})
}
