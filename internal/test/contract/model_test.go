package contract_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/randtest"
	"github.com/kubepleg/pleg/plegtest"
)

var modelSteps = flag.Int("model.steps", 60, "how many steps TestModel makes in each history")

// TestModel compares random histories of a runtime and its users with a naive model of the
// contract. The model keeps every past state. Each history runs in its own bubble. A failing
// history is shortened. The flags -rand.histories and -model.steps make the test longer.
func TestModel(t *testing.T) {
	steps := 0
	randtest.Check(t, 200, func(t *testing.T, r *rand.Rand) {
		history := make([]step, randtest.Pick(r, 5, *modelSteps/3, *modelSteps))
		for i := range history {
			history[i] = step{randtest.Pick(r, modelActions...), r.IntN(5), r.IntN(randtest.Pick(r, 10, 100, 1001))}
		}
		steps += len(history)
		var problems []string
		fails := func(h []step) bool {
			var found []string
			synctest.Test(t, func(t *testing.T) { found = runHistory(t, h) })
			if len(found) > 0 {
				problems = found
			}
			return len(found) > 0
		}
		if fails(history) {
			history = randtest.Shrink(history, fails)
			t.Fatalf("%d problems, the first: %s\n%v", len(problems), problems[0], history)
		}
	})
	t.Logf("%d steps", steps)
}

// step is one step of a history: the action, the pod, and a number for other choices.
type step struct {
	what string
	pod  int
	n    int
}

func (s step) String() string { return fmt.Sprintf("%s pod-%d %d", s.what, s.pod, s.n) }

var modelActions = []string{
	"run", "run", "exit", "exit", "exit", "remove container", "remove pod", "start created",
	"make sandbox", "start sandbox", "stop sandbox",
	"emit", "emit any", "break stream", "no events", "events",
	"fail inspection", "hang inspection", "uncancellable inspection", "slow inspection",
	"heal inspection", "heal inspection",
	"fail list", "partial list", "slow list", "stale list", "uncancellable list",
	"fail pod list", "stale pod list", "uncancellable pod list", "heal lists", "heal lists",
	"relist", "request relist", "request reinspect", "start", "start", "stop",
	"subscribe", "unsubscribe", "read", "read", "read all",
	"block", "block", "block later", "cancel",
	"wait", "wait", "wait", "wait long", "settle", "health",
}

// model is a node with all its past states.
type model struct {
	*node
	ctx  context.Context
	next int // makes container IDs that are never used again
	// exits contains the exit codes of the containers that have exited. seenExited contains the
	// containers that the cache has shown as exited.
	exits      map[string]int
	seenExited map[string]bool
	// deaths counts the published deaths that are not Initial.
	deaths float64
	// events is the number of events in the channel watch, without PodSyncs.
	events float64
	reg    *prometheus.Registry

	truth    map[types.UID][]moment
	healings map[string]func() // heal the active faults
	stuck    map[types.UID]bool
	lists    bool // true while lists work
	started  bool

	subs    []*modelSub
	readers []context.CancelFunc
	// The channel watch is read at once. published contains its last event for each container.
	watch     <-chan *pleg.PodLifecycleEvent
	published map[string]pleg.PodLifeCycleEventType
	// firstPublished is true once the state in the first full list is published.
	firstPublished bool
	joined         sync.WaitGroup

	mu       sync.Mutex
	problems []string // guarded by mu
}

// moment is the state of a pod's containers, and when that state began.
type moment struct {
	from  time.Time
	state map[string]pleg.State
}

type modelSub struct {
	events <-chan *pleg.PodLifecycleEvent
	cancel context.CancelFunc
	last   map[string]pleg.PodLifeCycleEventType
	closed bool
	// began is the published state when the subscription began. It is nil before the first full
	// list is published, because all events of that list are Initial.
	began map[string]pleg.PodLifeCycleEventType
}

func runHistory(t *testing.T, history []step) []string {
	n, reg := newNodeWithMetrics(t)
	m := &model{
		node: n, reg: reg, ctx: t.Context(), lists: true,
		truth: make(map[types.UID][]moment), healings: make(map[string]func()), stuck: make(map[types.UID]bool),
		published: make(map[string]pleg.PodLifeCycleEventType),
		exits:     make(map[string]int), seenExited: make(map[string]bool),
	}
	m.watch = m.g.Watch()
	m.EmitOnChange(true)
	for _, s := range history {
		m.do(s)
		m.record()
		m.listen()
	}
	m.end()
	return m.problems
}

func (m *model) problem(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

// record records the present state of every pod.
func (m *model) record() {
	now := time.Now()
	for i := range 5 {
		uid := modelPod(i)
		state := make(map[string]pleg.State)
		if pod := m.Pod(uid); pod != nil {
			for _, c := range pod.Containers {
				state[c.ID.ID] = c.State
			}
		}
		m.mu.Lock()
		m.truth[uid] = append(m.truth[uid], moment{now, state})
		m.mu.Unlock()
	}
}

// listen records the published events and the cached exits.
func (m *model) listen() {
	synctest.Wait()
	for _, pod := range m.cache.GetAll() {
		for _, s := range pod.ContainerStatuses {
			m.seenExited[s.ID.ID] = m.seenExited[s.ID.ID] || s.State == pleg.ContainerStateExited
		}
	}
	for len(m.watch) > 0 {
		e := <-m.watch
		if e.Type != pleg.PodSync {
			m.events++
			m.published[e.Data.(string)] = e.Type
			if e.Type == pleg.ContainerDied && !e.Initial && !isSandbox(e.Data.(string)) {
				m.deaths++
			}
		}
	}
	uninspected := func(p *pleg.Pod) bool { // Stop can have cancelled the inspection
		s, _ := m.cache.Get(p.ID)
		return s.Name == ""
	}
	if r := m.g.HealthReport(); m.g.HasSynced() && len(r.FailingPods)+len(r.CallsInFlight) == 0 &&
		!slices.ContainsFunc(m.g.Pods(), uninspected) {
		m.firstPublished = true
	}
}

// subscribe adds a subscriber.
func (m *model) subscribe(n int) {
	m.listen()
	ctx, cancel := context.WithCancel(m.ctx)
	sub := &modelSub{cancel: cancel, last: make(map[string]pleg.PodLifeCycleEventType)}
	if m.firstPublished {
		sub.began = maps.Clone(m.published)
	}
	sub.events = m.g.Subscribe(ctx, pleg.WithCapacity(n%4-1))
	m.subs = append(m.subs, sub)
}

func modelPod(i int) types.UID { return types.UID(fmt.Sprintf("pod-%d", i)) }

func (m *model) do(s step) {
	uid := modelPod(s.pod)
	pod := m.Pod(uid)
	switch s.what {
	case "run":
		m.next++
		states := []pleg.State{pleg.ContainerStateRunning, pleg.ContainerStateCreated, pleg.ContainerStateExited}
		c := plegtest.NewContainer(fmt.Sprintf("c%d", m.next), states[s.n%3])
		if pod == nil {
			m.SetPod(bare(uid, c))
		} else if len(pod.Containers) < 5 {
			m.UpdatePod(uid, func(p *pleg.Pod) { p.Containers = append(p.Containers, c) })
		}
	case "exit", "start created", "remove container":
		m.changeContainer(s, uid, pod)
	case "make sandbox":
		m.next++
		if pod == nil {
			m.SetPod(bare(uid))
		}
		m.SetSandbox(uid, fmt.Sprintf("s%d", m.next), pleg.ContainerStateUnknown)
	case "start sandbox", "stop sandbox":
		m.changeSandbox(s, uid, pod)
	case "remove pod":
		if pod != nil {
			m.RemovePod(uid)
		}
	case "emit":
		m.Emit(pleg.ContainerEvent{PodUID: uid})
	case "emit any":
		hinted := []types.UID{"", uid, "nobody"}[s.n%3]
		m.Emit(pleg.ContainerEvent{ContainerID: fmt.Sprintf("c%d", s.n%(m.next+2)), PodUID: hinted})
	case "break stream":
		m.BreakEventStreams([]error{nil, errors.New("reset")}[s.n%2])
	case "no events":
		m.EmitOnChange(false)
	case "events":
		m.EmitOnChange(true)
	case "wait":
		time.Sleep(time.Duration(s.n) * time.Millisecond)
	case "wait long":
		time.Sleep(time.Duration(s.n) * time.Second / 4)
	default:
		m.fault(s, uid)
		m.use(s, uid)
	}
}

func (m *model) changeContainer(s step, uid types.UID, pod *pleg.Pod) {
	if pod == nil || len(pod.Containers) == 0 {
		return
	}
	c := pod.Containers[s.n%len(pod.Containers)]
	switch {
	case s.what == "remove container":
		m.RemoveContainer(uid, c.ID.ID)
	case s.what == "exit" && c.State != pleg.ContainerStateExited:
		m.exits[c.ID.ID] = s.n
		m.ExitContainer(uid, c.ID.ID, s.n, "Error")
	case s.what == "start created" && c.State == pleg.ContainerStateCreated:
		m.SetContainer(uid, c.ID.ID, pleg.ContainerStateRunning)
	}
}

func isSandbox(id string) bool { return id[0] == 's' }

// changeSandbox makes a sandbox not ready if the step is "stop sandbox". Otherwise it makes a
// sandbox in an unknown state ready.
func (m *model) changeSandbox(s step, uid types.UID, pod *pleg.Pod) {
	if pod == nil || len(pod.Sandboxes) == 0 {
		return
	}
	box := pod.Sandboxes[s.n%len(pod.Sandboxes)]
	switch id := box.ID.ID; {
	case s.what == "stop sandbox":
		m.SetSandbox(uid, id, pleg.ContainerStateExited)
	case box.State == pleg.ContainerStateUnknown:
		m.SetSandbox(uid, id, pleg.ContainerStateRunning)
	}
}

// fault activates and ends faults, at most one for each kind and pod.
func (m *model) fault(s step, uid types.UID) {
	broken := errors.New("broken")
	slow := time.Duration(s.n) * time.Millisecond
	inject := func(key string, f plegtest.Fault) {
		if heal := m.healings[key]; heal != nil {
			heal()
		}
		m.healings[key] = m.Inject(f)
	}
	inspection, list, podList := "inspection "+string(uid), "list", "pod list"
	switch s.what {
	case "fail inspection":
		inject(inspection, plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: uid, Err: broken})
		m.stuck[uid] = true
	case "hang inspection":
		inject(inspection, plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: uid, Block: true})
		m.stuck[uid] = true
	case "uncancellable inspection":
		inject(inspection, plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: uid, Block: true, IgnoreCancel: true})
		m.stuck[uid] = true
	case "slow inspection":
		inject(inspection, plegtest.Fault{
			Method: plegtest.GetPodStatus, PodUID: uid, Delay: 3 * slow, IgnoreCancel: false, Stale: s.n%2 == 0,
		})
		m.stuck[uid] = true
	case "heal inspection":
		m.heal(inspection)
		delete(m.stuck, uid)
	case "fail list":
		inject(list, plegtest.Fault{Method: plegtest.GetPods, Err: broken})
		m.lists = false
	case "partial list":
		inject(list, plegtest.Fault{Method: plegtest.GetPods, Err: broken, Partial: s.n % 3})
		m.lists = false
	case "slow list":
		inject(list, plegtest.Fault{Method: plegtest.GetPods, Delay: 2 * slow})
		m.lists = false
	case "stale list":
		inject(list, plegtest.Fault{Method: plegtest.GetPods, Delay: slow, Stale: true})
		m.lists = false
	case "uncancellable list":
		inject(list, plegtest.Fault{Method: plegtest.GetPods, Block: true, IgnoreCancel: true})
		m.lists = false
	case "fail pod list":
		inject(podList, plegtest.Fault{Method: plegtest.GetPod, Err: broken})
	case "stale pod list":
		inject(podList, plegtest.Fault{Method: plegtest.GetPod, Delay: slow, Stale: true})
	case "uncancellable pod list":
		inject(podList, plegtest.Fault{Method: plegtest.GetPod, PodUID: uid, Block: true, IgnoreCancel: true})
	case "heal lists":
		m.heal(list)
		m.heal(podList)
		m.lists = true
	}
}

func (m *model) heal(key string) {
	if heal := m.healings[key]; heal != nil {
		heal()
		delete(m.healings, key)
	}
}

// use performs an action of a user of the generator.
func (m *model) use(s step, uid types.UID) {
	switch s.what {
	case "relist":
		m.joined.Go(func() { _ = m.g.Relist(context.Background()) })
	case "request relist":
		m.g.RequestRelist(uid)
	case "request reinspect":
		m.g.RequestReinspect(uid)
	case "start":
		m.g.Start(context.Background())
		m.started = true
	case "stop":
		began := time.Now()
		m.g.Stop()
		if took := time.Since(began); took > 6*time.Second {
			m.problem("Stop took %v", took)
		}
		m.started = false
	case "subscribe":
		m.subscribe(s.n)
	case "unsubscribe":
		if len(m.subs) > 0 {
			m.subs[s.n%len(m.subs)].cancel()
		}
	case "read", "read all":
		for _, sub := range m.subs {
			m.read(sub, []int{s.n % 5, 10000}[len(s.what)/8])
		}
	case "block":
		m.block(uid, time.Now().Add(-time.Duration(s.n%3)*time.Second))
	case "block later":
		m.block(uid, time.Now().Add(time.Duration(s.n)*time.Millisecond))
	case "cancel":
		for _, cancel := range m.readers {
			cancel()
		}
		m.readers = nil
	case "settle":
		m.settle()
	case "health":
		_, _ = m.g.Healthy()
		if r := m.g.HealthReport(); r.Backlog > 12*len(m.subs) {
			m.problem("rule 4: a backlog of %d pods", r.Backlog)
		}
	}
}

// read reads up to n events and checks rules 1, 3 and 4.
func (m *model) read(sub *modelSub, n int) {
	for range n {
		synctest.Wait()
		select {
		case e, ok := <-sub.events:
			if !ok {
				sub.closed = true
				return
			}
			m.check(sub, e)
		default:
			return
		}
	}
}

// block starts a goroutine that reads the cache with minTime. It compares the answer with the pod's
// states after minTime.
func (m *model) block(uid types.UID, minTime time.Time) {
	ctx, cancel := context.WithCancel(m.ctx)
	m.readers = append(m.readers, cancel)
	m.joined.Go(func() {
		status, _, err := m.cache.LookupNewerThan(ctx, uid, minTime)
		if status == nil {
			m.problem("rule 10: no status, and %v", err)
		}
		if err != nil {
			return
		}
		m.mu.Lock()
		moments := slices.Clone(m.truth[uid])
		m.mu.Unlock()
		if pod := m.Pod(uid); !wasTrue(moments, status, minTime) && !says(status, pod) {
			m.problem("rule 6: %s newer than %v was never so: %v", uid, minTime, statesOf(status))
		}
	})
}

// settle waits three periods. For each pod without a fault, the cache must then agree with the
// runtime, even if other pods have faults: rules 7, 9 and 12.
func (m *model) settle() {
	if !m.started || !m.lists {
		return
	}
	m.record()
	time.Sleep(3200 * time.Millisecond)
	synctest.Wait()
	for i := range 5 {
		uid := modelPod(i)
		if m.stuck[uid] {
			continue
		}
		status, err := m.cache.Get(uid)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && err.Error() != "broken" ||
			err == nil && !says(status, m.Pod(uid)) {
			m.problem("rule 12: %s: the cache has %v, %v; the runtime %v", uid, statesOf(status), err, describe(m.Pod(uid)))
		}
	}
}

// end ends all faults. It then compares the runtime's state with the state in the cache and in the
// subscribers' events.
func (m *model) end() {
	for _, heal := range m.healings {
		heal()
	}
	m.g.Start(context.Background())
	for range 3 {
		time.Sleep(2 * time.Minute)
		for _, sub := range m.subs {
			m.read(sub, 10000)
		}
	}
	time.Sleep(123 * time.Millisecond)
	synctest.Wait()
	if ok, err := m.g.Healthy(); !ok {
		m.problem("rule 13: %v", err)
	}
	if r := m.g.HealthReport(); len(r.FailingPods) > 0 || len(r.CallsInFlight) > 0 || r.Backlog > 0 {
		m.problem("something is left: %+v", r)
	}
	present := 0
	all := make(map[types.UID]map[string]pleg.State)
	for i := range 5 {
		uid := modelPod(i)
		pod := m.Pod(uid)
		if status, err := m.cache.Get(uid); err != nil || !says(status, pod) {
			m.problem("the cache has %v, %v of %s: %s", statesOf(status), err, uid, describe(pod))
		}
		if pod != nil {
			present++
			all[uid] = make(map[string]pleg.State)
			for _, c := range slices.Concat(pod.Containers, pod.Sandboxes) {
				all[uid][c.ID.ID] = c.State
			}
		}
	}
	if got := len(m.cache.GetAll()); got != present {
		m.problem("rule 9: %d pods in the cache, %d in the runtime", got, present)
	}
	for _, sub := range m.subs {
		if !sub.closed {
			m.compare(sub, all)
		}
	}
	m.listen()
	// A container that died and was removed between two publications is counted but not published.
	if got := m.countedExits(); got < m.deaths || got > float64(m.next) {
		m.problem("exits: %v are counted, %v were published, of %d containers", got, m.deaths, m.next)
	}
	if got := countedTransitions(m.t, m.reg); got < m.events {
		m.problem("transitions: %v are counted, %v were published", got, m.events)
	}
	for _, cancel := range m.readers {
		cancel()
	}
	m.g.Stop()
	m.joined.Wait()
}
