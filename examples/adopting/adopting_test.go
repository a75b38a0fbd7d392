package adopting

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// onNode runs a test in a bubble, on a simulated containerd with a generator. The pod shop/cart-0
// runs on the node. Full lists begin at whole seconds, so a test can act between two lists.
func onNode(t *testing.T, test func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		var l atomic.Pointer[bufconn.Listener]
		server, err := criserver.Start(criserver.WithListener(func() (net.Listener, error) {
			l.Store(bufconn.Listen(1 << 16))
			return l.Load(), nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Stop()
		runtime, err := cri.Dial("unix:///in-memory", cri.WithDialOptions(
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return l.Load().DialContext(ctx)
			})))
		if err != nil {
			t.Fatal(err)
		}
		defer runtime.Close()
		cache := pleg.NewCache()
		generator := pleg.New(runtime, pleg.WithCache(cache))
		generator.Start(t.Context())
		defer generator.Stop()
		sandbox := server.RunPod(criserver.PodConfig{UID: "cart", Name: "cart-0", Namespace: "shop",
			IPs: []string{"10.0.0.7"}, Labels: map[string]string{"team": "checkout"}})
		test(t, &node{t, server, sandbox, generator, cache})
	})
}

type node struct {
	t         *testing.T
	server    *criserver.Server
	sandbox   string
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
}

// run starts a container.
func (n *node) run(name string) (id string) {
	n.t.Helper()
	id, err := n.server.RunContainer(n.sandbox, criserver.ContainerConfig{Name: name})
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

func (n *node) remove(id string) {
	n.t.Helper()
	if err := n.server.RemoveContainer(id); err != nil {
		n.t.Fatal(err)
	}
}

// restart stops the runtime for ten seconds, and waits for ten seconds after the runtime's start.
func (n *node) restart() {
	n.t.Helper()
	n.server.Down()
	time.Sleep(10 * time.Second)
	if err := n.server.Up(); err != nil {
		n.t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
}

// After a restart of the runtime, Listen still reports new and removed containers, and reports no
// container twice. Get finds a new container before the next periodic list, and finds a removed
// container for one minute.
func TestFalcoEngine(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		app := n.run("app")
		time.Sleep(1500 * time.Millisecond) // the first list may have begun before the container
		engine := NewEngine(n.generator, n.cache)
		list, err := engine.List(t.Context())
		if err != nil || len(list) != 1 || list[0].ContainerID != app || list[0].Labels["team"] != "checkout" {
			t.Errorf("the list: %+v, %v", list, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		events, err := engine.Listen(ctx, &wg)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var got []string
		wg.Go(func() {
			for e := range events {
				mu.Lock()
				got = append(got, fmt.Sprint(e.Namespace, "/", e.Pod, " ", e.Name, " ", e.Removed))
				mu.Unlock()
			}
		})
		get := func(when, id string, want bool) {
			t.Helper()
			if e, err := engine.Get(t.Context(), id); err != nil || (e != nil) != want || want && e.Pod != "cart-0" {
				t.Errorf("%s: %+v, %v", when, e, err)
			}
		}
		time.Sleep(time.Second)
		n.restart()
		late := n.run("late")
		time.Sleep(time.Second)
		n.remove(late)
		time.Sleep(time.Second)
		get("just removed", late, true)
		time.Sleep(65 * time.Second)
		get("removed more than a minute ago", late, false)
		get("never heard of", strings.Repeat("0", 64), false)
		n.server.BreakEventStreams(nil) // no event announces the next container
		quick := n.run("quick")
		if _, known := n.cache.ByContainerID(quick); known {
			t.Error("it is known before it is listed")
		}
		get("not listed yet", quick, true)
		cancel()
		wg.Wait()
		want := []string{"shop/cart-0 app false", "shop/cart-0 late false", "shop/cart-0 late true"}
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("events: %q", got)
		}
	})
}

// Get finds a container by the first 12 characters of its ID, as Falco's kernel side requires. If
// the runtime never returns a container's status, Listen still reports the container's creation and
// removal.
func TestFalcoEngineWithoutStatus(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		engine := NewEngine(n.generator, n.cache)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		events, err := engine.Listen(ctx, &wg)
		if err != nil {
			t.Fatal(err)
		}
		next := func(name string, removed bool) {
			t.Helper()
			select {
			case e := <-events:
				if e.Name != name || e.Removed != removed || e.Pod != "cart-0" || e.Labels["team"] != "checkout" {
					t.Errorf("%+v", e)
				}
			case <-time.After(5 * time.Minute):
				t.Fatalf("no event of %s", name)
			}
		}
		get := func(name, id string, within time.Duration) {
			t.Helper()
			getCtx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			if e, err := engine.Get(getCtx, id[:12]); err != nil || e == nil || e.ContainerID != id || e.Name != name {
				t.Errorf("%s: %+v, %v", name, e, err)
			}
		}
		app := n.run("app")
		next("app", false)
		get("app", app, time.Second)

		heal := n.server.Block("ContainerStatus", "")
		defer heal()
		n.server.BreakEventStreams(nil)
		stuck := n.run("stuck")
		get("stuck", stuck, 150*time.Millisecond)
		next("stuck", false)
		n.remove(stuck)
		next("stuck", true)
	})
}

// Before and after a restart of the runtime, Get finds a container once a list shows the container
// or a hook adds it. Get still finds a removed container for one minute.
func TestTetragonCgroups(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		// inode returns the ID of a container's cgroup in this test.
		inode := func(containerID string) (cgroupID uint64, ok bool) {
			cgroupID, err := strconv.ParseUint(containerID[:15], 16, 64)
			return cgroupID, err == nil
		}
		cgroups := NewPodCgroups(n.cache, inode)
		var m CgroupMap = cgroups
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = cgroups.Follow(ctx, n.generator) })
		get := func(when, containerID string, want bool) {
			t.Helper()
			cgroupID, _ := inode(containerID)
			if id, ok := m.Get(cgroupID); ok != want || ok && id != containerID {
				t.Errorf("%s: %q %v", when, id, ok)
			}
		}
		time.Sleep(100 * time.Millisecond)
		n.server.BreakEventStreams(nil)
		app := n.run("app")
		get("before it is listed", app, false)
		time.Sleep(2 * time.Second)
		get("running", app, true)

		n.restart()
		get("after a restart of the runtime", app, true)
		hooked := strings.Repeat("7", 64)
		cgroupID, _ := inode(hooked)
		m.Add("cart", hooked, cgroupID)
		late := n.run("late")
		time.Sleep(time.Second)
		get("started after the restart", late, true)
		get("reported by a hook, not listed yet", hooked, true)

		n.remove(app)
		time.Sleep(time.Second)
		get("just removed", app, true)
		if pod, found := n.cache.ByContainerID(app); !found || pod.Name != "cart-0" || pod.GoneAt.IsZero() {
			t.Errorf("its pod: %+v", pod)
		}
		time.Sleep(65 * time.Second)
		n.run("other")
		time.Sleep(time.Second)
		get("removed more than a minute ago", app, false)
		get("still running", late, true)
		cancel()
		wg.Wait()
	})
}

// AddMetadata finds the labels of a process during and after a restart of the runtime. If a
// container is removed, AddMetadata still finds its labels for one minute. If a container is
// unknown, AddMetadata returns false.
func TestParcaMetadata(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		proc := fstest.MapFS{"1/cgroup": {Data: []byte("0::/init.scope\n")}}
		var provider MetadataProvider = PodMetadata{n.cache, proc}
		inContainer := func(pid int, id string) {
			path := "0::/kubepods.slice/kubepods-podcart.slice/cri-containerd-" + id + ".scope\n"
			proc[fmt.Sprint(pid, "/cgroup")] = &fstest.MapFile{Data: []byte(path)}
		}
		want := func(when string, pid int, cacheable bool, want ...string) {
			t.Helper()
			labels := map[string]string{}
			if got := provider.AddMetadata(pid, labels); got != cacheable {
				t.Errorf("%s: may be kept: %v", when, got)
			}
			for _, name := range want {
				delete(labels, name)
			}
			if left := slices.Sorted(maps.Keys(labels)); len(left) > 0 {
				t.Errorf("%s: %q too", when, left)
			}
		}
		pod := []string{"container_id", "namespace", "pod", "container", "image", "pod_label_team"}
		time.Sleep(100 * time.Millisecond)
		n.server.BreakEventStreams(nil)
		app := n.run("app")
		inContainer(7, app)
		want("of no container", 1, true)
		want("ended", 6, false)
		want("not known yet", 7, false)
		time.Sleep(2 * time.Second)
		want("running", 7, true, pod...)

		n.restart()
		want("after a restart of the runtime", 7, true, pod...)
		n.server.Down()
		want("while the runtime is away", 7, true, pod...)
		if err := n.server.Up(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		n.remove(app)
		time.Sleep(2 * time.Second)
		want("just removed", 7, true, pod...)
		time.Sleep(65 * time.Second)
		want("removed more than a minute ago", 7, false)
	})
}
