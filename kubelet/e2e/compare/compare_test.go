package compare

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

var (
	programs = flag.String("programs", "", "the folder of kubelet and stock; by default .cache/kubelet")
	chosen   = flag.String("scenes", "crash,takeover,frozen,undeleted,stuck,hang,lives,idle", "what to measure")
	rounds   = flag.Int("rounds", 1, "how often every kubelet plays each scene that has a fault, or crash")
	pods     = flag.Int("pods", 20, "how many pods there are, six at least")
	lasts    = flag.Duration("lasts", 20*time.Second, "how long a runtime is frozen or a container is stuck")
	lives    = flag.Int("lives", 300, "how many pods come and go under faults")
	within   = flag.Duration("within", 2*time.Second, "the limit on a crash while another pod is stuck")
	file     = flag.String("samples", "", "a file of samples to add to")
	timeout  = flag.Duration("request-timeout", 2*time.Minute, "runtimeRequestTimeout of the kubelets")
)

func init() { testnode.RegisterFlags() }

func TestMain(m *testing.M) {
	testnode.ExitWithoutRoot("of kubelets")
	os.Exit(m.Run())
}

// variant is a kubelet that is measured.
type variant struct {
	name, program string
	gates         map[string]bool
	noEvents      bool // true if the runtime refuses event streams
}

// ours reports whether the kubelet uses the library.
func (v variant) ours() bool { return v.program == "kubelet" }

var variants = []variant{
	{name: "stock", program: "stock"},
	{name: "stock, EventedPLEG", program: "stock", gates: map[string]bool{"EventedPLEG": true}},
	{name: "ours, hints only", program: "kubelet", gates: map[string]bool{"PLEGExitEvents": false}},
	{name: "ours", program: "kubelet"},
	{name: "ours, no events", program: "kubelet", noEvents: true},
}

// TestKubelets plays the scenes with each kubelet, on a runtime of its own.
func TestKubelets(t *testing.T) {
	r, err := readResults(*file)
	if err != nil {
		t.Fatal(err)
	}
	r.begin()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { playAll(t, r, v) })
	}
	if *file != "" {
		if err := r.write(*file); err != nil {
			t.Error(err)
		}
	}
	t.Log("\n" + r.table())
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func playAll(t *testing.T, r *results, v variant) {
	n := newNode(t, r, v)
	for name := range strings.SplitSeq(*chosen, ",") {
		t.Log(name)
		switch i := slices.IndexFunc(scenes(), func(s scene) bool { return s.name == name }); {
		case i >= 0:
			for range *rounds {
				n.play(scenes()[i])
			}
		case name == "lives":
			n.comeAndGo()
		case name == "idle":
			n.idle()
		default:
			t.Fatalf("there is no scene %q", name)
		}
	}
}

// scene is a fault during which containers are killed.
type scene struct {
	name, title string
	kills       int           // in how many pods the container is killed; 0 for all
	gap         time.Duration // average time between two kills
	lasts       time.Duration // the fault's minimum duration
	proxied     bool          // true if the kubelet's calls go through the proxy
	answered    bool          // true if the fault lasts until all successors and a new pod run
	// The function begin starts the fault, and returns a function that ends the fault. The fault
	// may affect the container first. Meanwhile, play kills containers of other pods.
	begin func(n *node, first container) (end func())
}

// scenes returns the scenes. Each call chooses a new random duration for the scene "hang".
func scenes() []scene {
	const ms, s = time.Millisecond, time.Second
	return []scene{
		{name: "crash", gap: 1500 * ms, answered: true},
		{name: "takeover", title: "kubelet ended and started: ", kills: 2, gap: s, begin: (*node).endKubelet},
		{name: "frozen", title: "runtime frozen: ", kills: 4, gap: 100 * ms, lasts: *lasts, begin: (*node).freeze},
		// The fault is shorter than 10 s, because containerd retries the deletion after 10 s.
		{name: "undeleted", title: "`runc delete` hangs: ", kills: 5, gap: 500 * ms, lasts: 5 * s,
			begin: (*node).blockDelete},
		// The gap is longer than two seconds, which is the period of the kubelet's housekeeping.
		{name: "stuck", title: "a container is stuck: ", kills: 5, gap: 3 * s, lasts: *lasts, begin: (*node).blockUpdate},
		{ // some of the stuck calls time out during the fault, others do not
			name: "hang", title: hangs, kills: 5, gap: 500 * ms, lasts: *timeout/2 + rand.N(*timeout),
			proxied: true, answered: true, begin: (*node).hang,
		},
	}
}

const (
	hangs      = "one pod hangs: "
	successor  = "container killed → successor created"
	afterFault = "end of the fault → successor created"
	alone      = "successors that were created after the end of the container before"
)

// play measures how a kubelet handles crashes during a fault. Containers that were not killed must
// not change.
func (n *node) play(s scene) {
	n.start(s.proxied)
	before := n.await("shows all pods", n.agrees(len(n.names)))
	victims, end := n.names, func() {}
	if s.begin != nil {
		victims = n.names[1 : 1+s.kills]
	}
	running, err := n.listContainers()
	n.must(err)
	// Do this before the fault, because a frozen runtime or a stuck container blocks these calls.
	for pod, c := range running {
		c.pid, err = n.client.Pid(n.t.Context(), c.id)
		n.must(err)
		running[pod] = c
	}
	began, killed := time.Now(), make(map[string]time.Time)
	if s.begin != nil {
		end = s.begin(n, running[n.names[0]])
	}
	defer func() { end() }() // end the fault even if the test fails
	for _, pod := range victims {
		n.wait(s.gap/2 + rand.N(s.gap))
		killed[pod], err = n.kill(running[pod])
		n.must(err)
	}
	created := make(map[string]time.Time)
	awaitSuccessors := func() {
		for _, pod := range victims {
			created[pod] = n.successor(pod, killed[pod])
		}
	}
	if s.answered {
		awaitSuccessors()
		n.remove(n.addNew(s.title + "manifest written → pod Running in `/pods`"))
	}
	n.wait(time.Until(began.Add(s.lasts)))
	if s.name != "takeover" {
		n.t.Log("  health:", n.health())
	}
	ended := time.Now()
	once := end
	end = func() {}
	once()
	awaitSuccessors()
	for _, pod := range victims {
		n.measure(s, running[pod].id, killed[pod], created[pod], ended)
	}
	n.wait(settle) // if a kubelet restarts containers, it does so with its first syncs
	after := n.await("agrees with the runtime", n.agrees(len(n.names)))
	for _, pod := range n.names {
		if !n.killed[running[pod].id] {
			n.tally(s.title+"containers that were left alone", after[pod] == before[pod],
				"the container of %s was %v, and is %v", pod, before[pod], after[pod])
		}
	}
	n.checkBackOff()
	n.checkMetrics()
	n.judgeSuccessors()
}

// measure records the kubelet's reactions to a crash.
func (n *node) measure(s scene, id string, killed, created, ended time.Time) {
	n.add(s.title+successor, created.Sub(killed))
	if s.begin != nil && !s.answered {
		n.add(s.title+afterFault, max(0, created.Sub(ended)))
	}
	if s.title == hangs && n.variant.ours() && created.Sub(killed) > *within {
		n.t.Errorf("%sa crash has its successor after %v, limit is %v", hangs, created.Sub(killed), *within)
	}
	if c, reported := n.exitOf(id); reported {
		n.add(s.title+"container killed → the runtime's exit event", c.reported.Sub(killed))
	}
	// EventedPLEG before 1.37 logs only the second of these two lines.
	if at, found := saidAt(n.kubelet.Log(), "ontainer finished", id); found {
		n.add(s.title+"container killed → the generator reports it", at.Sub(killed))
	}
	if at, found := saidAt(n.kubelet.Log(), "SyncLoop (PLEG)", "ContainerDied", id); found {
		n.add(s.title+"container killed → the kubelet's sync loop has the death", at.Sub(killed))
	}
}

// endKubelet stops the kubelet as an upgrade does. Then, while no kubelet runs, endKubelet adds a
// pod and removes another pod. The function end starts the kubelet again.
func (n *node) endKubelet(container) (end func()) {
	goes := n.addNew("")
	n.kubelet.Terminate(n.t)
	n.remove(goes)
	comes := n.addSleeper("comes")
	return func() {
		began := time.Now()
		n.launch()
		n.await("runs what was added", func(shown map[string]state) bool { return shown[comes].id != "" })
		n.add("kubelet started → a pod Running that was added before", time.Since(began))
		n.remove(comes)
	}
}

func (n *node) freeze(container) (end func()) {
	n.must(n.daemon.Freeze())
	return func() { n.must(n.daemon.Thaw()) }
}

// blockDelete makes runc block when it deletes dead containers. The runtime reports the exits, but
// shows the containers as running until they are deleted.
func (n *node) blockDelete(container) (end func()) {
	f, err := n.daemon.BlockRunc("delete", "")
	n.must(err)
	return func() { n.must(f.Heal()) }
}

// blockUpdate makes runc block while it changes a container's resources. containerd then lists no
// containers, sends no container events, and completes no creation of a container.
func (n *node) blockUpdate(first container) (end func()) {
	f, err := n.daemon.BlockRunc("update", first.id)
	n.must(err)
	changed := make(chan error, 1)
	go func() {
		_, err := n.client.UpdateContainerResources(n.t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: first.id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		changed <- err
	}()
	for deadline := time.Now().Add(settle); !f.Met(); n.wait(time.Millisecond) {
		if time.Now().After(deadline) {
			n.must(f.Heal())
			n.t.Fatal("the fault in runc does not block the runtime")
		}
	}
	return func() {
		n.must(f.Heal())
		n.must(<-changed)
	}
}

// releasedWithin limits the time from the end of a pod's fault to the creation of its container's
// successor. The library waits at most this long between two inspections.
const releasedWithin = 10 * time.Second

// hang kills the container of the first pod, and blocks the inspections of that pod.
func (n *node) hang(first container) (end func()) {
	n.proxy.Block(first.id, first.sandbox)
	killed, err := n.kill(first)
	n.must(err)
	n.wait(2 * time.Second)
	return func() {
		answered := time.Now()
		n.proxy.Release()
		took := max(0, n.successor(n.names[0], killed).Sub(answered))
		n.add(hangs+"its calls are answered again → its own successor created", took)
		if n.variant.ours() && took > releasedWithin {
			n.t.Errorf("the stuck pod's container has its successor after %v, the limit is %v", took, releasedWithin)
		}
	}
}

const idleTogether = "idle: CPU of kubelet and runtime together, of each second"

// idle measures the CPU time of the kubelet and the runtime during an idle minute.
func (n *node) idle() {
	n.start(false)
	n.wait(2 * settle)
	runtime, err := n.daemon.Pid()
	n.must(err)
	const seconds = 60
	var used [2]time.Duration
	for _, sign := range []time.Duration{-1, 1} {
		for i, pid := range []int{n.kubelet.Pid(), runtime} {
			cpu, err := measure.CPUOf(pid)
			n.must(err)
			used[i] += sign * cpu / seconds
		}
		if sign < 0 {
			n.wait(seconds * time.Second)
		}
	}
	n.add("idle: CPU of kubelet, of each second", used[0])
	n.add(idleTogether, used[0]+used[1])
}
