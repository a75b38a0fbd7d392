package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// The commands that change the runtime of a scenario.

// pod sets a pod: "pod web:name app=running sandbox:box=exited". The name may be
// left out, and so may everything else.
func (s *scenario) pod(c command) string {
	uid, name, named := strings.Cut(c.first(), ":")
	pod := &pleg.Pod{ID: types.UID(uid), Name: uid, Namespace: "default"}
	if named {
		pod.Name = name
	}
	s.fill(c, pod, c.args[1:])
	s.rt.SetPod(pod)
	return ""
}

// fill gives a pod the containers and sandboxes that arguments name, in their
// order: "nil" is a nil container, and an ID of "" is empty.
func (s *scenario) fill(c command, pod *pleg.Pod, args []datadriven.CmdArg) {
	for _, a := range args {
		id, sandbox := strings.CutPrefix(a.Key, "sandbox:")
		var made *pleg.Container
		switch {
		case a.Key == "nil":
		case len(a.Vals) != 1:
			c.fatalf("what is the state of %s?", id)
		case sandbox:
			made = plegtest.NewSandbox(id, pleg.State(a.Vals[0]))
		default:
			made = plegtest.NewContainer(strings.Trim(id, `"`), pleg.State(a.Vals[0]))
		}
		if sandbox {
			pod.Sandboxes = append(pod.Sandboxes, made)
		} else {
			pod.Containers = append(pod.Containers, made)
		}
	}
	for _, made := range pod.Containers {
		if made != nil && len(pod.Sandboxes) > 0 {
			made.PodSandboxID = pod.Sandboxes[0].ID.ID
		}
	}
}

// set puts containers of a pod into states: "set pod=web app=exited".
func (s *scenario) set(c command) string {
	for _, a := range c.args {
		if a.Key != "pod" {
			s.rt.SetContainer(types.UID(c.str("pod")), a.Key, pleg.State(a.Vals[0]))
		}
	}
	return ""
}

// sandbox puts sandboxes of a pod into states; a new one is the newest.
func (s *scenario) sandbox(c command) string {
	for _, a := range c.args {
		if a.Key != "pod" {
			s.rt.SetSandbox(types.UID(c.str("pod")), a.Key, pleg.State(a.Vals[0]))
		}
	}
	return ""
}

func (s *scenario) exit(c command) string {
	s.rt.ExitContainer(types.UID(c.str("pod")), c.str("id"), c.number("code", 0), c.str("reason"))
	return ""
}

// remove removes a pod, or a container or a sandbox of it.
func (s *scenario) remove(c command) string {
	uid := types.UID(c.str("pod"))
	switch {
	case c.has("id"):
		s.rt.RemoveContainer(uid, c.str("id"))
	case c.has("sandbox"):
		s.rt.RemoveSandbox(uid, c.str("sandbox"))
	default:
		s.rt.RemovePod(uid)
	}
	return ""
}

// ips sets the addresses of the newest sandbox.
func (s *scenario) ips(c command) string {
	var ips []string
	for _, a := range c.args {
		if a.Key != "pod" {
			ips = append(ips, a.Key)
		}
	}
	s.rt.SetIPs(types.UID(c.str("pod")), ips...)
	return ""
}

// garbage makes the runtime answer garbage of a kind.
func (s *scenario) garbage(c command) string {
	uid := types.UID(c.str("pod"))
	switch kind := c.first(); kind {
	case "nil-pod":
		s.rt.SetPods(append(s.listed(), nil)...)
	case "listed-beside": // whatever its UID, and though that may be listed already
		if uid == `""` {
			uid = ""
		}
		pod := &pleg.Pod{ID: uid, Name: "garbage", Namespace: "default"}
		s.fill(c, pod, c.args[2:])
		s.rt.SetPods(append(s.listed(), pod)...)
	case "panic":
		panics := func(context.Context) error { panic("the runtime has a bug") }
		s.inject(c, plegtest.Fault{Method: plegtest.Method(c.str("call")), PodUID: uid, Do: panics})
	case "none":
		delete(s.garbled, uid)
	default:
		s.garbled[uid] = kind
	}
	return ""
}

// listed returns what there is, not counted as a call.
func (s *scenario) listed() []*pleg.Pod {
	pods, err := s.rt.GetPods(context.Background(), true)
	if err != nil {
		s.t.Fatalf("garbage comes before failures: %v", err)
	}
	return append([]*pleg.Pod(nil), pods...)
}

// healing ends a fault; key says which.
type healing struct {
	key  string
	heal func()
}

// inject puts a fault in force for a call and, if there is one, a pod.
func (s *scenario) inject(c command, f plegtest.Fault) {
	f.Times = c.number("times", 0)
	f.IgnoreCancel = c.has("deaf")
	s.heals = append(s.heals, healing{string(f.Method) + "/" + string(f.PodUID), s.rt.Inject(f)})
}

func (s *scenario) fail(c command) string {
	text := c.str("error")
	if text == "" {
		text = "broken"
	}
	s.inject(c, plegtest.Fault{
		Method: plegtest.Method(c.first()), PodUID: types.UID(c.str("pod")), Err: errors.New(text), Partial: c.number("partial", 0),
	})
	return ""
}

func (s *scenario) hang(c command) string {
	s.inject(c, plegtest.Fault{Method: plegtest.Method(c.first()), PodUID: types.UID(c.str("pod")), Hang: true})
	return ""
}

func (s *scenario) delay(c command) string {
	s.inject(c, plegtest.Fault{Method: plegtest.Method(c.first()), PodUID: types.UID(c.str("pod")), Delay: c.duration("by")})
	return ""
}

// heal ends the faults of a call and a pod, or all of them.
func (s *scenario) heal(c command) string {
	key := ""
	if len(c.args) > 0 {
		key = c.first() + "/" + c.str("pod")
	}
	var kept []healing
	for _, h := range s.heals {
		if key == "" || h.key == key {
			h.heal()
		} else {
			kept = append(kept, h)
		}
	}
	s.heals = kept
	return ""
}

// emit sends an event of the runtime, which may be late, repeated or made up.
func (s *scenario) emit(c command) string {
	for range c.number("times", 1) {
		s.rt.Emit(pleg.ContainerEvent{PodUID: types.UID(c.str("pod")), ContainerID: c.str("id"), CreatedAt: s.clock.Now()})
	}
	return ""
}

// stream says what the event stream does from now on: silent and talking are about
// changes, which tell of themselves or do not; break ends it. Without an argument
// it says how the generator sees it.
func (s *scenario) stream(c command) string {
	if len(c.args) == 0 {
		r := s.g.HealthReport().Stream
		if r.Error == "" {
			return string(r.State)
		}
		return fmt.Sprintf("%s; the last one: %s", r.State, r.Error)
	}
	switch what := c.first(); what {
	case "silent", "talking":
		s.rt.EmitOnChange(what == "talking")
	case "break":
		var err error
		if c.has("error") {
			err = errors.New(c.str("error"))
		}
		s.rt.BreakStreams(err)
	case "served":
		s.rt.SetEventMode(plegtest.EventsServed)
	case "unsupported":
		s.rt.SetEventMode(plegtest.EventsUnsupported)
	case "ends":
		s.rt.SetEventMode(plegtest.EventsEndAtOnce)
	default:
		c.fatalf("%s?", what)
	}
	return ""
}

// garbled has the pods of which the runtime answers garbage, and of which kind.
type garbled map[types.UID]string

// recordingRuntime is the fake runtime, written down and garbled.
type recordingRuntime struct{ s *scenario }

func (r *recordingRuntime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	r.s.calls.add(plegtest.GetPods, "", r.s.clock.Now())
	return r.s.rt.GetPods(ctx, all)
}

func (r *recordingRuntime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	r.s.calls.add(plegtest.GetPodStatus, pod.ID, r.s.clock.Now())
	status, err := r.s.rt.GetPodStatus(ctx, pod)
	switch r.s.garbled[pod.ID] {
	case "nil-status":
		return nil, nil
	case "wrong-status":
		return &pleg.PodStatus{ID: "somebody-else"}, nil
	case "nil-items-in-status":
		status.ContainerStatuses = append(status.ContainerStatuses, nil)
		status.SandboxStatuses = append(status.SandboxStatuses, nil)
	}
	return status, err
}

// recordingCompanions is the same with the optional companions of a runtime.
type recordingCompanions struct{ recordingRuntime }

func (r *recordingCompanions) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	r.s.calls.add(plegtest.GetPod, uid, r.s.clock.Now())
	switch r.s.garbled[uid] {
	case "nil-look":
		return nil, nil
	case "wrong-look":
		return &pleg.Pod{ID: "somebody-else"}, nil
	}
	return r.s.rt.GetPod(ctx, uid)
}

func (r *recordingCompanions) WatchContainerEvents(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	return r.s.rt.WatchContainerEvents(ctx, connected, observe)
}

// callLog is the calls that the runtime got since it was last asked for them.
type callLog struct {
	mu    sync.Mutex
	calls []loggedCall // guarded by mu
}

type loggedCall struct {
	method plegtest.Method
	uid    types.UID
	at     time.Time
}

func (l *callLog) add(m plegtest.Method, uid types.UID, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, loggedCall{m, uid, at})
}

func (l *callLog) take() []loggedCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return calls
}

// callsMade says which calls the runtime got since the command came last: how
// many of each, or when they were made, or those about one pod. "calls drop" says
// nothing of them.
func (s *scenario) callsMade(c command) string {
	calls := s.calls.take()
	if c.has("drop") {
		return ""
	}
	var said strings.Builder
	for _, m := range []plegtest.Method{plegtest.GetPods, plegtest.GetPod, plegtest.GetPodStatus} {
		n, when := 0, ""
		for _, call := range calls {
			if call.method == m && (!c.has("pod") || call.uid == types.UID(c.str("pod"))) {
				n++
				when += " " + s.since(call.at)
			}
		}
		switch {
		case n == 0:
		case c.has("pod") || c.has("times"):
			fmt.Fprintf(&said, "%s at%s\n", m, when)
		default:
			fmt.Fprintf(&said, "%s %d\n", m, n)
		}
	}
	if said.Len() == 0 {
		return "no calls"
	}
	return said.String()
}
