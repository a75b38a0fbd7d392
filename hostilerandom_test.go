package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// hostile drives a generator with a random history, and checks what is promised of events,
// statuses, suspensions, readers and look-ups against the history of the fake runtime.
type hostile struct {
	t       *testing.T
	rnd     *rand.Rand
	rt      *plegtest.Runtime
	cache   *pleg.PodCache
	g       *pleg.GenericPLEG
	log     []string
	ids     int
	running bool
	began   time.Time // of the first list at the earliest

	mu      sync.Mutex
	history map[types.UID][]hostileMoment
	changed map[string]time.Time // by container: when it was removed or, before, exited
	exited  map[string]bool
	seen    map[string]pleg.State // by container: its state in the cache, as it was last

	watch  *hostileListener
	subs   []*hostileListener
	heals  map[int]func()
	faults int
	held   []*hostileHeld
	wg     sync.WaitGroup
	// firstListBy: the first list is over at the latest then
	synced bool
	six    bool
}

type hostileMoment struct {
	from time.Time
	sig  string
}

type hostileHeld struct {
	uid    types.UID
	resume func()
	lapses time.Time
	status *pleg.PodStatus
	known  bool
	err    error
}

const hostileTimeout = 10 * time.Second

type hostileListener struct {
	h        *hostile
	name     string
	ch       <-chan *pleg.PodLifecycleEvent
	cancel   context.CancelFunc
	begins   time.Time
	early    bool // before the first list
	existed  map[string]pleg.State
	wants    func(types.UID) bool
	mu       sync.Mutex
	last     map[string]pleg.PodLifeCycleEventType
	podSeen  map[types.UID]time.Time // ListedAt of the first
	asked    map[types.UID]int
	handler  bool
	pods     map[types.UID]bool
	returned bool
	closed   bool
}

func (h *hostile) errorf(format string, args ...any) {
	h.t.Helper()
	h.t.Errorf(format, args...)
	h.t.FailNow()
}

func sigOfPod(p *pleg.Pod) string {
	if p == nil {
		return ""
	}
	var parts []string
	for _, c := range p.Containers {
		parts = append(parts, c.ID.ID+"="+string(c.State))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func sigOfStatus(s *pleg.PodStatus) string {
	var parts []string
	for _, c := range s.ContainerStatuses {
		parts = append(parts, c.ID.ID+"="+string(c.State))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// note notes the present state of a pod.
func (h *hostile) note(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history[uid] = append(h.history[uid], hostileMoment{time.Now(), sigOfPod(h.rt.Pod(uid))})
}

// was reports whether a pod had a state at some time from a time on.
func (h *hostile) was(uid types.UID, sig string, from time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.history[uid]
	if len(list) == 0 {
		return sig == ""
	}
	if sig == "" && from.Before(list[0].from) {
		return true
	}
	for i, m := range list {
		if m.sig == sig && (i+1 == len(list) || !list[i+1].from.Before(from)) {
			return true
		}
	}
	return false
}

func (l *hostileListener) errorf(format string, args ...any) {
	l.h.t.Errorf("%s: %s", l.name, fmt.Sprintf(format, args...))
}

// take checks an event.
func (l *hostileListener) take(e *pleg.PodLifecycleEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.h
	if e.Pod == nil || e.Pod.ID != e.ID {
		l.errorf("%s has pod %v", line(e), e.Pod)
	}
	if l.wants != nil && !l.wants(e.ID) {
		l.errorf("%s is not wanted", line(e))
	}
	if _, known, _ := h.cache.Lookup(e.ID); known && !fresh(h.cache, e.ID, e.ListedAt.Add(-1)) {
		l.errorf("rule 3: %s comes before its status", line(e))
	}
	if l.handler && !l.pods[e.ID] {
		l.errorf("%s of a pod that was not added", line(e))
	}
	if e.Type == pleg.PodSync {
		if e.Initial || e.Status != nil || e.Container != nil {
			l.errorf("%+v", e)
		}
		return
	}
	id := e.Data.(string)
	if e.Container == nil || e.Container.ID.ID != id {
		l.errorf("%s has container %v", line(e), e.Container)
	}
	if e.Status != nil && e.Status.ID.ID != id {
		l.errorf("%s has the status of %s", line(e), e.Status.ID.ID)
	}
	if e.Status != nil && e.Status.State == pleg.ContainerStateExited && e.Status.ExitCode != exitOf(id) {
		l.errorf("%s has exit code %d", line(e), e.Status.ExitCode)
	}
	if e.Type == pleg.ContainerDied || e.Type == pleg.ContainerRemoved {
		h.mu.Lock()
		seen, was := h.seen[id]
		h.mu.Unlock()
		if was && l == h.watch && e.Status == nil && os.Getenv("HOSTILE_STATUS") != "" {
			l.errorf("%s has no status, and the cache had one", line(e))
		}
		if was && l == h.watch && seen == pleg.ContainerStateExited && e.Status != nil && e.Status.State != seen {
			l.errorf("%s has the status %v, and the cache had its end", line(e), e.Status)
		}
	}
	was, known := l.last[id]
	switch e.Type {
	case pleg.ContainerStarted:
		if known {
			l.errorf("%s after %s", line(e), was)
		}
	case pleg.ContainerDied:
		if known && was != pleg.ContainerStarted {
			l.errorf("%s after %s", line(e), was)
		}
	case pleg.ContainerRemoved:
		if was != pleg.ContainerDied {
			l.errorf("%s after %s", line(e), was)
		}
	}
	l.last[id] = e.Type
	first, seen := l.podSeen[e.ID]
	if !seen {
		l.podSeen[e.ID] = e.ListedAt
	}
	if e.Initial && seen && !first.Equal(e.ListedAt) {
		l.errorf("%s is initial, and not of the first that is learnt of the pod", line(e))
	}
	state := pleg.ContainerStateRunning
	if e.Type != pleg.ContainerStarted {
		state = pleg.ContainerStateExited
	}
	h.mu.Lock()
	changed := h.changed[id]
	h.mu.Unlock()
	if e.Initial && !l.early && changed.After(l.begins) && e.Container.State == state {
		// It may have had the state before only if it has changed since; it changes once each way.
		if state == pleg.ContainerStateExited || known {
			l.errorf("%s is initial, and changed at %v, after %v", line(e), changed, l.begins)
		}
	}
	if !e.Initial && !l.early && l.existed[id] == state && !changed.After(l.begins) && e.Type != pleg.ContainerRemoved && !seen {
		l.errorf("%s is news, and existed at %v; it changed at %v", line(e), l.begins, changed)
	}
}

func exitOf(id string) int {
	n, _ := strconv.Atoi(id[strings.LastIndex(id, "-")+1:])
	return n%250 + 1
}

func (l *hostileListener) present() map[string]pleg.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := make(map[string]pleg.State)
	for id, last := range l.last {
		switch last {
		case pleg.ContainerStarted:
			p[id] = pleg.ContainerStateRunning
		case pleg.ContainerDied:
			p[id] = pleg.ContainerStateExited
		}
	}
	return p
}

// drain reads up to n events.
func (l *hostileListener) drain(n int) {
	for ; n != 0 && !l.closed; n-- {
		select {
		case e, ok := <-l.ch:
			if !ok {
				l.closed = true
				return
			}
			if l == l.h.watch {
				for _, s := range l.h.held {
					if s.uid == e.ID && time.Now().Before(s.lapses) {
						l.errorf("rule 20: %s of a suspended pod", line(e))
					}
				}
			}
			l.take(e)
		default:
			return
		}
	}
}

func (h *hostile) newListener(name string) *hostileListener {
	l := &hostileListener{h: h, name: name, begins: time.Now(), early: !h.synced, last: make(map[string]pleg.PodLifeCycleEventType),
		podSeen: make(map[types.UID]time.Time), asked: make(map[types.UID]int), pods: make(map[types.UID]bool)}
	if h.watch != nil {
		h.watch.drain(-1)
		l.existed = h.watch.present()
	}
	return l
}

func (h *hostile) say(format string, args ...any) {
	s := fmt.Sprintf("%v ", time.Since(h.began)) + fmt.Sprintf(format, args...)
	h.log = append(h.log, s)
}

func (h *hostile) newID(uid types.UID) string {
	h.ids++
	return fmt.Sprintf("%s-%d", uid, h.ids)
}

func (h *hostile) mark(id string) {
	h.mu.Lock()
	if _, exited := h.exited[id]; !exited {
		h.changed[id] = time.Now()
	}
	h.mu.Unlock()
}

// mutate changes one pod.
func (h *hostile) mutate() {
	uid := types.UID(string(rune('a' + h.rnd.IntN(5))))
	pod := h.rt.Pod(uid)
	if pod == nil || len(pod.Containers) == 0 || h.rnd.IntN(3) == 0 {
		id := h.newID(uid)
		h.mark(id)
		if pod == nil {
			h.rt.SetPod(bare(uid, plegtest.Running(id)))
		} else {
			h.rt.SetContainer(uid, id, pleg.ContainerStateRunning)
		}
		h.say("%s runs", id)
		h.note(uid)
		return
	}
	c := pod.Containers[h.rnd.IntN(len(pod.Containers))]
	id := c.ID.ID
	switch k := h.rnd.IntN(10); {
	case k < 4 && c.State == pleg.ContainerStateRunning:
		h.mark(id)
		h.exited[id] = true
		h.rt.ExitContainer(uid, id, exitOf(id), "Error")
		h.say("%s exits", id)
	case k < 7:
		h.mark(id)
		h.rt.RemoveContainer(uid, id)
		h.say("%s is removed", id)
	case k < 8:
		for _, c := range pod.Containers {
			h.mark(c.ID.ID)
		}
		h.rt.RemovePod(uid)
		h.say("%s is removed", uid)
	case k < 9:
		for _, c := range pod.Containers {
			h.mark(c.ID.ID)
		}
		h.rt.RemovePod(uid)
		h.note(uid)
		id := h.newID(uid)
		h.mark(id)
		h.rt.SetPod(bare(uid, plegtest.Running(id)))
		h.say("%s is removed and back with %s", uid, id)
	default:
		return
	}
	h.note(uid)
}

func (h *hostile) fault() {
	if len(h.heals) > 0 && h.rnd.IntN(2) == 0 {
		for k, heal := range h.heals {
			heal()
			delete(h.heals, k)
			h.say("heal %d", k)
			return
		}
	}
	methods := []plegtest.Method{plegtest.GetPods, plegtest.GetPod, plegtest.GetPodStatus, plegtest.GetPodStatus, plegtest.WatchContainerEvents}
	m := methods[h.rnd.IntN(len(methods))]
	uid := types.UID(string(rune('a' + h.rnd.IntN(5))))
	if h.rnd.IntN(3) == 0 || m == plegtest.GetPods || m == plegtest.WatchContainerEvents {
		uid = plegtest.AnyPod
	}
	f := plegtest.Fault{Method: m, PodUID: uid, Times: h.rnd.IntN(4)}
	switch h.rnd.IntN(5) {
	case 0:
		f.Err = errors.New("fault")
	case 1:
		f.Hang = true
	case 2:
		f.Hang, f.IgnoreCancel = true, true
	case 3:
		f.Delay = time.Duration(h.rnd.IntN(3000)) * time.Millisecond
	case 4:
		f.Delay, f.Stale = time.Duration(h.rnd.IntN(3000))*time.Millisecond, m != plegtest.GetPodStatus
	}
	h.faults++
	h.heals[h.faults] = h.rt.Inject(f)
	h.say("fault %d %+v", h.faults, f)
}

func (h *hostile) healAll() {
	h.rt.Heal()
	clear(h.heals)
	h.say("heal all")
}

func (h *hostile) suspend() {
	uid := types.UID(string(rune('a' + h.rnd.IntN(6))))
	resume := h.g.Suspend(uid)
	h.watch.drain2(uid)
	status, known, err := h.cache.Lookup(uid)
	h.held = append(h.held, &hostileHeld{uid, resume, time.Now().Add(hostileTimeout), status, known, err})
	h.say("suspend %s", uid)
}

// drain2 reads everything, also of a pod that is suspended by now.
func (l *hostileListener) drain2(uid types.UID) {
	held := l.h.held
	l.h.held = slices.DeleteFunc(slices.Clone(held), func(s *hostileHeld) bool { return s.uid == uid })
	defer func() { l.h.held = held }()
	for _, s := range held {
		if s.uid == uid && time.Now().Before(s.lapses) {
			l.h.held = held
		}
	}
	l.drain(-1)
}

func (h *hostile) resume() {
	if len(h.held) == 0 {
		return
	}
	i := h.rnd.IntN(len(h.held))
	s := h.held[i]
	h.held = slices.Delete(h.held, i, i+1)
	h.say("resume %s", s.uid)
	s.resume()
}

func (h *hostile) suspended(uid types.UID) bool {
	return slices.ContainsFunc(h.held, func(s *hostileHeld) bool { return s.uid == uid && time.Now().Before(s.lapses) })
}

func (h *hostile) checkHeld() {
	synctest.Wait()
	for _, s := range h.held {
		if !time.Now().Before(s.lapses) {
			continue
		}
		status, known, err := h.cache.Lookup(s.uid)
		if status != s.status || known != s.known || err != s.err {
			h.errorf("rule 20: %s is suspended; Lookup was %v %v %v, is %v %v %v", s.uid, s.status, s.known, s.err, status, known, err)
		}
	}
	h.held = slices.DeleteFunc(h.held, func(s *hostileHeld) bool { return !time.Now().Before(s.lapses) })
}

func (h *hostile) reader() {
	uid := types.UID(string(rune('a' + h.rnd.IntN(6))))
	minTime := time.Now().Add(time.Duration(h.rnd.IntN(2000)-1000) * time.Millisecond)
	if h.rnd.IntN(2) == 0 {
		minTime = time.Now()
	}
	wait := time.Duration(h.rnd.IntN(30000)) * time.Millisecond
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		s, err := h.cache.GetNewerThanContext(ctx, uid, minTime)
		if err != nil {
			return
		}
		if !h.was(uid, sigOfStatus(s), minTime) {
			h.t.Errorf("rule 6: a reader of %s newer than %v got %q at %v", uid, minTime.Sub(h.began), sigOfStatus(s), time.Since(h.began))
		}
		if !s.TimeStamp.IsZero() && !h.was(uid, sigOfStatus(s), s.TimeStamp) {
			h.t.Errorf("TimeStamp %v of %s is not before %q", s.TimeStamp.Sub(h.began), uid, sigOfStatus(s))
		}
	})
}

func (h *hostile) subscribe() {
	if len(h.subs) > 8 {
		l := h.subs[0]
		h.subs = h.subs[1:]
		l.cancel()
		return
	}
	l := h.newListener(fmt.Sprintf("sub%d@%v", h.faults, time.Since(h.began)))
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	opts := []pleg.SubscribeOption{pleg.WithName([]string{"", "x", "y"}[h.rnd.IntN(3)])}
	if h.rnd.IntN(2) == 0 {
		parity := h.rnd.IntN(2)
		panics := h.rnd.IntN(2) == 0
		l.wants = func(uid types.UID) bool { return int(uid[0])%2 == parity }
		opts = append(opts, pleg.WithFilter(func(p *pleg.Pod) bool {
			if !l.wants(p.ID) && panics {
				panic("no")
			}
			return l.wants(p.ID)
		}))
	}
	kind := h.rnd.IntN(4)
	h.say("subscribe %s kind %d filter %v", l.name, kind, l.wants != nil)
	switch kind {
	case 3:
		l.handler = true
		slow := time.Duration(h.rnd.IntN(3)) * 700 * time.Millisecond
		uses := h.rnd.IntN(2) == 0
		handle := func(e *pleg.PodLifecycleEvent) {
			l.take(e)
			time.Sleep(slow)
			if uses {
				h.g.RequestRelist(e.ID)
				h.g.Pods()
				h.g.HealthReport()
				h.g.Suspend("z")()
				if e.Type == pleg.ContainerDied {
					h.g.Relist()
				}
			}
		}
		h.wg.Go(func() {
			h.g.Handle(ctx, pleg.Handler{
				OnPodAdded: func(p *pleg.Pod) {
					l.mu.Lock()
					defer l.mu.Unlock()
					if l.pods[p.ID] {
						l.errorf("%s added twice", p.ID)
					}
					l.pods[p.ID] = true
				},
				OnPodRemoved: func(p *pleg.Pod) {
					l.mu.Lock()
					defer l.mu.Unlock()
					if !l.pods[p.ID] {
						l.errorf("%s removed and not there", p.ID)
					}
					delete(l.pods, p.ID)
					for id, last := range l.last {
						if strings.HasPrefix(id, string(p.ID)+"-") && last != pleg.ContainerRemoved {
							l.errorf("%s removed, and last of %s was %s", p.ID, id, last)
						}
					}
				},
				OnContainerStarted: handle, OnContainerDied: handle, OnContainerRemoved: handle, OnPodSync: handle,
			}, opts...)
			l.mu.Lock()
			l.returned = true
			l.mu.Unlock()
		})
	case 0:
		l.ch = h.g.Subscribe(ctx, 0, opts...)
	case 1:
		l.ch = h.g.Subscribe(ctx, 3, opts...)
	case 2:
		l.ch = h.g.Subscribe(ctx, 1000, opts...)
	}
	h.subs = append(h.subs, l)
}

// relistIsComplete makes a relist without faults, and compares.
func (h *hostile) relistIsComplete() {
	h.healAll()
	synctest.Wait()
	asked := time.Now()
	h.say("relist")
	h.g.Relist()
	h.watch.drain(-1)
	if ok := h.g.HealthReport().RelistError; ok != "" {
		return
	}
	got := h.watch.present()
	n := 0
	for _, p := range h.present() {
		if h.suspended(p.ID) {
			for id := range got {
				if strings.HasPrefix(id, string(p.ID)+"-") {
					delete(got, id)
				}
			}
			continue
		}
		if !fresh(h.cache, p.ID, asked.Add(-1)) {
			h.errorf("after Relist %s is not fresh", p.ID)
		}
		for _, c := range p.Containers {
			n++
			if got[c.ID.ID] != c.State {
				h.errorf("after Relist: %s is %s, the events say %q", c.ID.ID, c.State, got[c.ID.ID])
			}
		}
	}
	for _, s := range h.held {
		for id := range got {
			if h.suspended(s.uid) && strings.HasPrefix(id, string(s.uid)+"-") {
				delete(got, id)
			}
		}
	}
	if n != len(got) {
		h.errorf("after Relist there are %d containers, the events say %v", n, got)
	}
	if !h.g.HasSynced() && len(h.held) == 0 {
		h.errorf("after Relist it has not synced")
	}
}

func (h *hostile) present() []*pleg.Pod {
	var list []*pleg.Pod
	for _, uid := range []types.UID{"a", "b", "c", "d", "e", "f"} {
		if p := h.rt.Pod(uid); p != nil {
			list = append(list, p)
		}
	}
	return list
}

func (h *hostile) stop() {
	h.say("stop")
	h.g.Stop()
	h.running = false
	synctest.Wait()
	for _, l := range h.subs {
		if l.handler {
			continue // one that sleeps returns later
		}
		l.drain(-1)
		if !l.closed {
			h.errorf("%s is not closed", l.name)
		}
		l.cancel()
	}
	h.subs = nil
}

func (h *hostile) end() {
	h.healAll()
	for len(h.held) > 0 {
		h.resume()
	}
	h.g.Start()
	h.running = true
	for range 100 {
		time.Sleep(2 * time.Second)
		synctest.Wait()
		h.watch.drain(-1)
		for _, l := range h.subs {
			if !l.handler {
				for range 50 {
					l.drain(-1)
					synctest.Wait()
				}
			}
		}
	}
	h.g.Relist()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	h.watch.drain(-1)
	for _, l := range append([]*hostileListener{h.watch}, h.subs...) {
		if !l.handler {
			l.drain(-1)
		}
		got := l.present()
		n := 0
		for _, p := range h.present() {
			if l.wants != nil && !l.wants(p.ID) {
				continue
			}
			if l.handler && !l.pods[p.ID] {
				h.errorf("%s: %s was not added", l.name, p.ID)
			}
			for _, c := range p.Containers {
				n++
				if got[c.ID.ID] != c.State {
					h.errorf("%s: at the end %s is %s, the events say %q", l.name, c.ID.ID, c.State, got[c.ID.ID])
				}
			}
		}
		if n != len(got) {
			h.errorf("%s: at the end there are %d containers, the events say %v", l.name, n, got)
		}
	}
	for _, p := range h.present() {
		s, known, err := h.cache.Lookup(p.ID)
		if !known || err != nil || s == nil || sigOfStatus(s) != sigOfPod(p) {
			h.errorf("at the end Lookup of %s is %v %v %v", p.ID, s, known, err)
		}
		for _, c := range p.Containers {
			if by, ok := h.cache.ByContainerID("x://" + c.ID.ID); !ok || by != s {
				h.errorf("at the end ByContainerID of %s is %v", c.ID.ID, by)
			}
		}
	}
	r := h.g.HealthReport()
	if !r.Healthy || len(r.FailingPods) > 0 || r.Backlog > 0 || r.Pods != len(h.present()) || len(h.g.Pods()) != r.Pods || len(r.CallsInFlight) > 0 {
		h.errorf("at the end: %+v", r)
	}
	for _, s := range r.NamedSubscribers {
		if s.Backlog > 0 || !s.BehindSince.IsZero() {
			h.errorf("at the end: %+v", s)
		}
	}
	h.stop()
	h.wg.Wait()
	if h.cache.BlockedReaders() != 0 {
		h.errorf("blocked readers")
	}
}

// sixMethods hides the companions of a cache.
type hostileSix struct{ pleg.Cache }

func hostileRun(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		h := &hostile{t: t, rnd: rnd, rt: plegtest.NewRuntime(), cache: pleg.NewCache(), began: time.Now(),
			history: make(map[types.UID][]hostileMoment), changed: make(map[string]time.Time), exited: make(map[string]bool), seen: make(map[string]pleg.State), heals: make(map[int]func())}
		defer func() {
			h.rt.Heal()
			h.g.Stop()
			for _, l := range h.subs {
				if l.cancel != nil {
					l.cancel()
				}
			}
			h.wg.Wait()
			if t.Failed() {
				t.Logf("seed %d:\n%s", seed, strings.Join(h.log, "\n"))
			}
		}()
		var rt pleg.Runtime = h.rt
		opts := []pleg.Option{pleg.WithLogger(logr.Discard()), pleg.WithInspectionTimeout(hostileTimeout)}
		variant := rnd.IntN(5)
		switch variant {
		case 0:
			rt = h.rt.Plain()
		case 1:
			rt = listsOnly(h.rt)
		case 2:
			h.rt.EmitOnChange(true)
			opts = append(opts, pleg.WithConnectedRelistPeriod(30*time.Second))
		case 3:
			h.rt.EmitOnChange(true)
		}
		var cache pleg.Cache = h.cache
		if rnd.IntN(3) == 0 {
			cache = hostileSix{h.cache}
			h.six = true
		}
		h.g = pleg.NewGenericPLEG(rt, 100000, 0, cache, clock.RealClock{}, opts...)
		h.say("variant %d six %v", variant, h.six)
		early := rnd.IntN(2) == 0
		if early {
			w := h.newListener("watch")
			h.watch = w
			w.ch = h.g.Watch()
		}
		for range rnd.IntN(4) {
			h.mutate()
		}
		if !early {
			h.g.Relist()
			h.synced = h.g.HasSynced()
			w := h.newListener("watch")
			w.ch = h.g.Watch()
			h.watch = w
		}
		for range 60 {
			if t.Failed() {
				return
			}
			switch k := rnd.IntN(100); {
			case k < 35:
				h.mutate()
			case k < 45:
				h.fault()
			case k < 55:
				h.suspend()
			case k < 64:
				h.resume()
			case k < 72:
				h.reader()
			case k < 80:
				h.subscribe()
			case k < 83:
				h.say("request")
				h.g.RequestRelist(types.UID(string(rune('a' + rnd.IntN(6)))))
			case k < 85:
				h.say("reinspect")
				h.g.RequestReinspect(types.UID(string(rune('a' + rnd.IntN(6)))))
			case k < 88:
				h.say("go relist")
				h.wg.Go(h.g.Relist)
			case k < 92:
				h.relistIsComplete()
			case k < 95:
				if h.running {
					h.stop()
				} else {
					h.say("start")
					h.g.Start()
					h.running = true
				}
			case k < 97:
				for _, l := range h.subs {
					if !l.handler {
						l.drain(1 + rnd.IntN(3))
					}
				}
			default:
				h.healAll()
			}
			if h.g.HasSynced() {
				h.synced = true
			}
			switch rnd.IntN(4) {
			case 0:
				synctest.Wait()
			case 1:
				time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
			case 2:
				time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
			}
			if h.running {
				h.checkHeld()
			}
			h.watch.drain(-1)
			h.mu.Lock()
			for _, s := range h.cache.GetAll() {
				for _, c := range s.ContainerStatuses {
					h.seen[c.ID.ID] = c.State
				}
			}
			h.mu.Unlock()
		}
		h.end()
	})
}

func TestHostileRandom(t *testing.T) {
	first, n := uint64(1), uint64(300)
	if s := os.Getenv("HOSTILE_SEED"); s != "" {
		fmt.Sscan(s, &first, &n)
	}
	for seed := first; seed < first+n; seed++ {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) { hostileRun(t, seed) })
		if !ok {
			return
		}
	}
}
