package contract_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/randtest"
	"github.com/kubepleg/pleg/plegtest"
)

func exitsOnly(rt *plegtest.Runtime) pleg.Runtime {
	return struct {
		pleg.Runtime
		pleg.ExitSource
	}{rt.Plain(), rt}
}

// In random histories, exit events are early, late, repeated, or for removed containers. Each death
// is delivered once and in order, no new death is Initial, and the counter is correct. Once the
// cache has shown that a container has exited, the cache never shows it running again.
func TestExitHistories(t *testing.T) {
	randtest.Check(t, 100, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) { fuzzExits(t, r) })
	})
}

func fuzzExits(t *testing.T, r *rand.Rand) {
	wraps := []func(*plegtest.Runtime) pleg.Runtime{
		listing, exitsOnly,
		func(rt *plegtest.Runtime) pleg.Runtime { return rt },
	}
	which := r.IntN(len(wraps))
	pod := plegtest.NewRuntime()
	reg := prometheus.NewRegistry()
	cache := pleg.NewCache()
	opts := []pleg.Option{pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(reg)}
	if r.IntN(3) == 0 {
		opts = append(opts, pleg.WithInspectionWorkers(1))
	}
	g := pleg.NewGenericPLEG(wraps[which](pod), 0, 0, cache, clock.RealClock{}, opts...)
	rt := pod
	rt.EmitOnChange(r.IntN(2) == 0)
	var trace []string
	say := func(f string, args ...any) {
		trace = append(trace, fmt.Sprintf("%v ", time.Now().Format("04:05.000"))+fmt.Sprintf(f, args...))
	}
	defer func() {
		if t.Failed() {
			for _, l := range trace {
				t.Log(l)
			}
		}
	}()
	say("runtime %d", which)
	uids := []types.UID{"p0", "p1", "p2"}
	live := map[string]types.UID{}  // running containers, with their pods
	dead := map[string]types.UID{}  // exited containers that are still listed
	dying := map[string]types.UID{} // reported by an exit event, but still listed as running
	deaths := map[string]bool{}
	var all []string
	next := 0
	add := func(uid types.UID) {
		id := fmt.Sprintf("c%d", next)
		next++
		if r.IntN(4) == 0 { // the exit event comes before any list
			rt.EmitExit(pleg.ContainerExit{ContainerID: id, ExitCode: 7, FinishedAt: time.Now().Add(time.Hour)})
			dying[id] = uid
			say("exit event of %s, yet to come", id)
			if r.IntN(2) == 0 {
				time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
			}
		} else {
			live[id] = uid
		}
		all = append(all, id)
		if rt.Pod(uid) == nil {
			rt.SetPod(bare(uid))
		}
		rt.SetContainer(uid, id, pleg.ContainerStateRunning)
		say("run %s/%s", uid, id)
	}
	pick := func(m map[string]types.UID) (string, types.UID) {
		for _, id := range all {
			if _, ok := m[id]; ok && r.IntN(len(m)) == 0 {
				return id, m[id]
			}
		}
		return "", ""
	}
	for _, uid := range uids {
		add(uid)
		add(uid)
	}
	for id := range dying { // nobody read these exit events, so these containers count as running
		live[id] = dying[id]
	}
	clear(dying)
	events := g.Watch()
	re := newReplay(t)
	diedNews, transitions := 0, 0.0
	synced := false
	drain := func() {
		for len(events) > 0 {
			e := <-events
			say("  event %s initial=%v cause=%s", withStatus(e), e.Initial, e.Cause)
			re.take(e)
			if e.Type != pleg.PodSync {
				transitions++
			}
			if e.Type == pleg.ContainerDied && !e.IsSandbox() {
				if !e.Initial {
					diedNews++
				}
			}
			if synced && e.Initial {
				t.Errorf("%s is initial", line(e))
			}
		}
	}
	g.Start(t.Context())
	synctest.Wait()
	drain()
	synced = true
	slow := g.Subscribe(t.Context(), pleg.WithCapacity(-1))
	var heals []func()
	running := true
	for range 150 {
		switch r.IntN(18) {
		case 0, 1:
			add(uids[r.IntN(len(uids))])
		case 2, 3, 4: // an exit, with or without an exit event
			if id, uid := pick(live); id != "" {
				delete(live, id)
				report := r.IntN(3)
				e := pleg.ContainerExit{ContainerID: id, ExitCode: 7, FinishedAt: time.Now()}
				if r.IntN(2) == 0 {
					e.PodUID = uid
				}
				if report == 0 {
					rt.EmitExit(e)
					say("exit event of %s, early", id)
					dying[id] = uid
					break
				}
				rt.ExitContainer(uid, id, 7, []string{"Error", "OOMKilled"}[r.IntN(2)])
				dead[id] = uid
				say("exit %s/%s", uid, id)
				if report == 1 {
					rt.EmitExit(e)
					say("exit event of %s", id)
				}
			}
		case 5, 6:
			if id, uid := pick(dying); id != "" {
				delete(dying, id)
				dead[id] = uid
				rt.ExitContainer(uid, id, 7, []string{"Error", "OOMKilled"}[r.IntN(2)])
				say("exit %s/%s, after its exit event", uid, id)
			}
		case 7, 8:
			m := dead
			if r.IntN(4) == 0 {
				m = live
			}
			if id, uid := pick(m); id != "" {
				delete(m, id)
				deaths[id] = true
				rt.RemoveContainer(uid, id)
				say("remove %s/%s", uid, id)
				if r.IntN(2) == 0 {
					rt.EmitExit(pleg.ContainerExit{ContainerID: id, ExitCode: 7, FinishedAt: time.Now()})
					say("exit event of %s, late", id)
				}
			}
		case 9:
			uid := uids[r.IntN(len(uids))]
			if rt.Pod(uid) == nil {
				break
			}
			rt.RemovePod(uid)
			say("remove pod %s", uid)
			for _, m := range []map[string]types.UID{live, dead, dying} {
				for id, u := range m {
					if u == uid {
						deaths[id] = true
						delete(m, id)
						if r.IntN(2) == 0 {
							rt.EmitExit(pleg.ContainerExit{ContainerID: id, ExitCode: 7, FinishedAt: time.Now()})
						}
					}
				}
			}
		case 10:
			rt.EmitExit(pleg.ContainerExit{ContainerID: all[r.IntN(len(all))] + "x", ExitCode: 7})
		case 11:
			if id, _ := pick(dead); id != "" {
				rt.EmitExit(pleg.ContainerExit{ContainerID: id, ExitCode: 7, FinishedAt: time.Now()})
				say("exit event of %s, again", id)
			}
		case 12:
			f := plegtest.Fault{Method: []plegtest.Method{plegtest.GetPods, plegtest.GetPod, plegtest.GetPodStatus}[r.IntN(3)],
				Delay: time.Duration(r.IntN(3000)) * time.Millisecond, Stale: r.IntN(2) == 0,
				Times: 1 + r.IntN(3), IgnoreCancel: r.IntN(3) == 0}
			if r.IntN(5) == 0 {
				f.Err = errors.New("broken")
			}
			heals = append(heals, rt.Inject(f))
			say("fault %+v", f)
		case 13:
			if r.IntN(3) == 0 {
				m := []plegtest.Method{plegtest.GetPods, plegtest.GetPod, plegtest.GetPodStatus}[r.IntN(3)]
				heals = append(heals, rt.BlockIgnoringCancel(m, ""))
				say("hang %s", m)
			}
		case 14:
			for _, h := range heals {
				h()
			}
			say("heal")
			heals = nil
		case 15:
			uid := uids[r.IntN(len(uids))]
			g.RequestReinspect(uid)
			say("reinspect %s", uid)
		case 16:
			g.RequestRelist(uids[r.IntN(len(uids))])
			say("relist")
		case 17:
			if r.IntN(4) == 0 {
				say("stop or start")
				if running {
					g.Stop()
				} else {
					g.Start(t.Context())
				}
				running = !running
			}
		}
		if r.IntN(2) == 0 {
			time.Sleep([]time.Duration{1, 30, 400, 2000}[r.IntN(4)] * time.Millisecond)
		}
		synctest.Wait()
		drain()
		if r.IntN(4) == 0 && running {
			for _, h := range heals {
				h()
			}
			heals = nil
			began := time.Now()
			if !returns(30*time.Second, func() { _ = g.Relist(t.Context()) }) {
				t.Errorf("Relist hangs since %v", began)
			}
			say("Relist took %v", time.Since(began))
			synctest.Wait()
			drain()
			if time.Since(began) < time.Second {
				list, _ := rt.GetPods(t.Context(), true)
				for _, p := range list {
					if len(g.HealthReport().FailingPods) > 0 {
						break
					}
					s, _ := cache.Get(p.ID)
					st := map[string]pleg.State{}
					for _, c := range s.ContainerStatuses {
						st[c.ID.ID] = c.State
					}
					for _, c := range p.Containers {
						if _, d := dying[c.ID.ID]; !d && st[c.ID.ID] != c.State {
							t.Errorf("after Relist %s is %s, not %s", c.ID.ID, st[c.ID.ID], c.State)
						}
					}
				}
			}
		}
	}
	for id, uid := range dying {
		rt.ExitContainer(uid, id, 7, "OOMKilled")
		dead[id] = uid
	}
	say("every reported exit has happened")
	rt.Heal()
	if !running {
		g.Start(t.Context())
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	drain()
	list, _ := rt.GetPods(t.Context(), true)
	re.equals(list)
	for id := range dead {
		deaths[id] = true
	}
	if u := g.HealthReport().UnconfirmedExits; len(u) > 0 {
		t.Errorf("unconfirmed: %+v", u)
	}
	for _, p := range list {
		s, err := cache.Get(p.ID)
		truth, _ := rt.GetPodStatus(t.Context(), p)
		if err != nil || len(s.ContainerStatuses) != len(truth.ContainerStatuses) {
			t.Errorf("%s: %v, %v", p.ID, s, err)
			continue
		}
		for i, c := range truth.ContainerStatuses {
			if got := s.ContainerStatuses[i]; got.ID != c.ID ||
				got.State != c.State || got.Reason != c.Reason || got.Unconfirmed {
				t.Errorf("%s: the cache has %s %s %s unconfirmed=%v, the runtime %s %s",
					p.ID, got.ID, got.State, got.Reason, got.Unconfirmed, c.State, c.Reason)
			}
		}
	}
	total := 0
	for _, n := range counted(t, reg) {
		total += int(n)
	}
	if total > len(deaths) || total < diedNews {
		t.Errorf("%d deaths are counted, %d were delivered, there were %d", total, diedNews, len(deaths))
	}
	if got := countedTransitions(t, reg); got < transitions {
		t.Errorf("%v transitions are counted, %v were delivered", got, transitions)
	}
	// The slow subscriber's events lead to the present state too.
	sre := newReplay(t)
	for {
		select {
		case e := <-slow:
			if e == nil { // closed by Stop
				sre = nil
			} else {
				sre.take(e)
				synctest.Wait()
				continue
			}
		default:
		}
		break
	}
	if sre != nil {
		sre.equals(list)
	}
	healthy(t, g)
	g.Stop()
}

// A runtime is short of CPU: its answers are old, and the recorded start of a container is after
// its end. Lists and statuses then seem to show a restart. A handler is sent at most one start, one
// death and one end.
func TestEndsOfASlowRuntime(t *testing.T) {
	randtest.Check(t, 500, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) { fuzzSlowEnds(t, r) })
	})
}

func fuzzSlowEnds(t *testing.T, r *rand.Rand) {
	n := newNode(t)
	n.EmitOnChange(r.IntN(2) == 0)
	n.start()
	var l lives
	l.follow(t, n)
	finished, skew := time.Now().Add(500*time.Millisecond), time.Duration(r.IntN(4)-1)*time.Second
	states := []pleg.State{pleg.ContainerStateCreated, pleg.ContainerStateRunning, pleg.ContainerStateExited}
	inList, inStatus, exits := 0, 0, r.IntN(6)
	var history []string
	for i := range 12 {
		if inStatus < 2 && r.IntN(3) == 0 {
			inStatus++
		}
		if inList < inStatus && r.IntN(2) == 0 {
			inList++
		}
		history = append(history, fmt.Sprintf("listed %s, inspected %s, exit event: %v", states[inList], states[inStatus],
			i == exits))
		for _, m := range []plegtest.Method{plegtest.GetPods, plegtest.GetPodStatus, plegtest.GetPod} {
			if r.IntN(3) == 0 {
				f := plegtest.Fault{Method: m, Times: 1 + r.IntN(2), Stale: r.IntN(2) == 0,
					Delay: time.Duration(r.IntN(8000)) * time.Millisecond}
				if r.IntN(4) == 0 {
					f.Err = errors.New("overloaded")
				}
				n.Inject(f)
			}
		}
		if i == exits {
			n.EmitExit(pleg.ContainerExit{PodUID: "a", ContainerID: "a1", ExitCode: 3, FinishedAt: finished})
		}
		pod, _ := shortLived(states[inList], finished, skew)
		_, status := shortLived(states[inStatus], finished, skew)
		n.SetStatus("a", status) // first: in a status that the fake builds, the start is another one
		n.SetPod(pod)
		if r.IntN(2) == 0 {
			n.g.RequestRelist("a")
		}
		time.Sleep(time.Duration(r.IntN(6000)) * time.Millisecond)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	calls := make(map[string]int)
	for _, line := range l.lines {
		what, _, _ := strings.Cut(strings.TrimPrefix(line, "initially "), " ")
		calls[what]++
	}
	if calls["started"] > 1 || calls["died"] != 1 || calls["ended"] != 1 {
		t.Errorf("%v: %q\n%s", calls, l.lines, strings.Join(history, "\n"))
	}
}
