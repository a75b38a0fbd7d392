package contract_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/randtest"
	"github.com/kubepleg/pleg/plegtest"
)

// Lookup reports whether the pod exists. Its status is never nil.
func TestLookup(t *testing.T) {
	c := &pleg.PodCache{}
	look := func(what, want string) {
		t.Helper()
		s, exists, err := c.Lookup("a")
		if got := fmt.Sprintf("exists=%v %s %d err=%v", exists, s.ID, len(s.IPs), err); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	look("never heard of", "exists=false a 0 err=<nil>")
	c.SetObservedTime("a", at(1))
	look("confirmed absent", "exists=false a 0 err=<nil>")
	broken := errors.New("broken")
	c.Set("a", nil, broken, at(2))
	look("failed", "exists=true a 0 err=broken")
	c.Set("a", nil, broken, at(3))
	look("failed again", "exists=true a 0 err=broken")
	c.Set("a", &pleg.PodStatus{ID: "a", IPs: []string{"10.0.0.1"}}, nil, at(4))
	look("inspected", "exists=true a 1 err=<nil>")
	c.Set("a", nil, broken, at(5))
	look("failed with a good status", "exists=true a 1 err=broken")
	c.Set("a", nil, nil, at(6))
	look("set to nothing", "exists=true a 0 err=<nil>")
	c.Delete("a")
	look("gone", "exists=false a 0 err=<nil>")
}

// With a generator, Lookup finds a pod after a list has shown the pod, until the pod's last event
// is delivered.
func TestLookupWithGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		heal := n.Block(plegtest.GetPodStatus, "pod-00000")
		n.start()
		n.SetPods(pods(1)...)
		events := n.g.Watch()
		time.Sleep(1500 * time.Millisecond)
		if s, known, err := n.cache.Lookup("pod-00000"); !s.TimeStamp.IsZero() || !known || err != nil {
			t.Errorf("while it is inspected: %v %v %v", s, known, err)
		}
		for _, id := range []string{"pod-00000-a", "test://pod-00000-a", "pod-00000-sandbox", "pod-00000-sand"} {
			s, known := n.cache.ByContainerID(id)
			if !known || s.ID != "pod-00000" || s.Name != "pod-00000" || s.FindContainerStatusByID("pod-00000-a") == nil {
				t.Errorf("by %q before it was inspected: %v %v", id, s, known)
			}
		}
		heal()
		time.Sleep(1500 * time.Millisecond)
		if s, known, err := n.cache.Lookup("pod-00000"); s.TimeStamp.IsZero() || !known || err != nil {
			t.Errorf("once it is inspected: %v %v %v", s, known, err)
		}
		n.RemovePod("pod-00000")
		for e := range events {
			if e.Type == pleg.ContainerRemoved {
				break
			}
		}
		if s, known, err := n.cache.Lookup("pod-00000"); !s.TimeStamp.IsZero() || known || err != nil {
			t.Errorf("once it is gone: %v %v %v", s, known, err)
		}
		if s, found := n.cache.ByContainerID("pod-00000-sandbox"); !found || s.GoneAt.IsZero() {
			t.Errorf("its sandbox, after it is gone: %v", s)
		}
	})
}

func uidsOf(statuses ...*pleg.PodStatus) (uids []string) {
	for _, s := range statuses {
		uids = append(uids, string(s.ID))
	}
	return uids
}

func TestLookups(t *testing.T) {
	c := pleg.NewCache()
	c.Set("old", lookupStatus("old", "cart-0", 10, []string{"c1"}, []string{"10.0.0.1", "fd00::1"}), nil, at(1))
	c.Set("new", lookupStatus("new", "cart-0", 20, []string{"c3", "c2"}, []string{"10.0.0.1"}), nil, at(1))
	c.Set("nameless", lookupStatus("nameless", "", 5, []string{"c4"}, nil), nil, at(1))
	c.Set("bad", &pleg.PodStatus{ID: "bad", IPs: []string{"", "no address"},
		ContainerStatuses: []*pleg.Status{nil, {}, {ID: pleg.ContainerID{ID: "c5"}}},
		SandboxStatuses:   []*runtimeapi.PodSandboxStatus{nil, {}}}, nil, at(1))
	for id, want := range map[string]string{
		"c1": "old", "containerd://c1": "old", "cri-o://c2": "new", "new-sandbox": "new",
		"containerd://old-sandbox": "old", "c4": "nameless", "c5": "bad",
		"": "", "containerd://": "", "c": "", "://": "", "containerd://containerd://c1": "",
	} {
		s, known := c.ByContainerID(id)
		if known != (want != "") || s == nil || string(s.ID) != want {
			t.Errorf("container %q: %v %v, want %s", id, s, known, want)
		}
	}
	want(t, "by name", uidsOf(c.ByName("shop", "cart-0")...), "new", "old")
	want(t, "by another namespace", uidsOf(c.ByName("", "cart-0")...))
	want(t, "by no name", uidsOf(c.ByName("shop", "")...))
	want(t, "by IP", uidsOf(c.ByIP("10.0.0.1")...), "new", "old")
	want(t, "by IPv4 in IPv6", uidsOf(c.ByIP("::ffff:10.0.0.1")...), "new", "old")
	want(t, "by IPv6 in full", uidsOf(c.ByIP("fd00:0:0:0:0:0:0:1")...), "old")
	want(t, "by no IP", uidsOf(c.ByIP("")...))
	want(t, "by what is no IP", uidsOf(c.ByIP("no address")...), "bad")

	// Pod "old" loses its address and gets a newer sandbox; later, it is deleted.
	c.Set("old", lookupStatus("old", "cart-0", 30, []string{"c6"}, nil), nil, at(2))
	want(t, "by name again", uidsOf(c.ByName("shop", "cart-0")...), "old", "new")
	want(t, "by IP again", uidsOf(c.ByIP("10.0.0.1")...), "new")
	c.Set("old", nil, errors.New("broken"), at(3)) // the last good status stays
	if _, known := c.ByContainerID("c6"); !known {
		t.Error("an inspection that failed took the pod from the look-ups")
	}
	c.Delete("old")
	c.Delete("old")
	want(t, "by name at last", uidsOf(c.ByName("shop", "cart-0")...), "new")
	if s, known := c.ByContainerID("c6"); known {
		t.Errorf("a container that is gone is found: %v", s)
	}
}

// naiveLookups implements the look-ups by scanning all statuses.
type naiveLookups map[types.UID]*pleg.PodStatus

func (n naiveLookups) find(has func(*pleg.PodStatus) bool) []string {
	var found []*pleg.PodStatus
	for _, s := range n {
		if has(s) {
			found = append(found, s)
		}
	}
	created := func(s *pleg.PodStatus) int64 {
		if len(s.SandboxStatuses) > 0 {
			return s.SandboxStatuses[0].CreatedAt
		}
		return 0
	}
	slices.SortFunc(found, func(a, b *pleg.PodStatus) int {
		return cmp.Or(cmp.Compare(created(b), created(a)), strings.Compare(string(a.ID), string(b.ID)))
	})
	return uidsOf(found...)
}

// For random calls of Set and Delete, the look-ups return the same results as a scan of all
// statuses.
func TestLookupsModel(t *testing.T) {
	uids := []types.UID{"a", "b", "c", "d", ""}
	containers := []string{"c1", "c2", "c3", "c4", ""}
	names := []string{"web", "db", ""}
	ips := []string{"10.0.0.1", "10.0.0.2", "fd00::1", "FD00:0::1", "::ffff:10.0.0.2", "x", ""}
	same := func(a, b string) bool {
		x, err1 := netip.ParseAddr(a)
		y, err2 := netip.ParseAddr(b)
		return a == b && a != "" || err1 == nil && err2 == nil && x.Unmap() == y.Unmap()
	}
	randtest.Check(t, 100, func(t *testing.T, r *rand.Rand) {
		c := &pleg.PodCache{}
		model := make(naiveLookups)
		for when := range 30 {
			uid := randtest.Pick(r, uids...)
			stamp := at(when + 1)
			what := randtest.Pick(r, "set", "set the same", "set an error", "set an old one", "delete")
			t.Logf("%s %q", what, uid)
			switch {
			case what == "set":
				s := lookupStatus(uid, randtest.Pick(r, names...), r.Int64N(4),
					randtest.Several(r, 4, containers...), randtest.Several(r, 3, ips...))
				t.Log(s)
				c.Set(uid, s, nil, stamp)
				model[uid] = s
			case what == "set the same" && model[uid] != nil:
				again := *model[uid]
				c.Set(uid, &again, nil, stamp)
				model[uid] = &again
			case what == "set an error":
				c.Set(uid, nil, errors.New("broken"), stamp)
				if model[uid] == nil {
					model[uid] = &pleg.PodStatus{ID: uid}
				}
			case what == "set an old one" && model[uid] != nil:
				c.Set(uid, lookupStatus(uid, "web", 1, containers, ips), nil, at(0))
			case what == "delete":
				c.Delete(uid)
				delete(model, uid)
			}
			for _, id := range append([]string{"a-sandbox", "-sandbox"}, containers...) {
				var first []string
				if found := model.find(func(s *pleg.PodStatus) bool { return id != "" && hasContainer(s, id) }); len(found) > 0 {
					first = found[:1]
				}
				var got []string
				if s, known := c.ByContainerID("x://" + id); known {
					got = uidsOf(s)
				}
				if diff := gocmp.Diff(first, got); diff != "" {
					t.Fatalf("container %q (-want +got):\n%s", id, diff)
				}
			}
			for _, name := range names {
				all := model.find(func(s *pleg.PodStatus) bool {
					return name != "" && s.Name == name && s.Namespace == "shop"
				})
				if diff := gocmp.Diff(all, uidsOf(c.ByName("shop", name)...)); diff != "" {
					t.Fatalf("name %q (-want +got):\n%s", name, diff)
				}
			}
			for _, ip := range ips {
				all := model.find(func(s *pleg.PodStatus) bool {
					return slices.ContainsFunc(s.IPs, func(other string) bool { return same(ip, other) })
				})
				if diff := gocmp.Diff(all, uidsOf(c.ByIP(ip)...)); diff != "" {
					t.Fatalf("IP %q (-want +got):\n%s", ip, diff)
				}
			}
		}
	})
}

func hasContainer(s *pleg.PodStatus, id string) bool {
	return slices.ContainsFunc(s.ContainerStatuses, func(c *pleg.Status) bool { return c.ID.ID == id }) ||
		slices.ContainsFunc(s.SandboxStatuses, func(b *runtimeapi.PodSandboxStatus) bool { return b.Id == id })
}

// The memory for look-ups is bounded by the existing pods, although many pods come and go.
func TestLookupsAreBounded(t *testing.T) {
	c := pleg.NewCache()
	churn := func(from int) {
		for i := from; i < from+20000; i++ {
			uid := types.UID(fmt.Sprint("pod-", i%10))
			c.Set(uid, lookupStatus(uid, fmt.Sprint("name-", i), int64(i),
				[]string{fmt.Sprint("container-", i)}, []string{fmt.Sprint("10.0.", i/256%256, ".", i%256), "10.9.9.9"}),
				nil, at(1))
			if i%3 == 0 {
				c.Delete(uid)
			}
		}
	}
	churn(0)
	before := heapInUse()
	churn(20000)
	if after := heapInUse(); after > before+64<<10 {
		t.Errorf("the heap grew by %d KiB", (after-before)>>10)
	}
	runtime.KeepAlive(c)
}

// Readers may look up pods while a writer writes.
func TestLookupsBesideWriter(t *testing.T) {
	c := pleg.NewCache()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s, known := c.ByContainerID("x://c1"); known && !hasContainer(s, "c1") {
					t.Error("a status without the container")
				}
				for _, s := range append(c.ByName("shop", "web"), c.ByIP("10.0.0.1")...) {
					_ = s.IPs
				}
				_, _, _ = c.Lookup("a")
			}
		})
	}
	for i := range 2000 {
		c.Set("a", lookupStatus("a", "web", int64(i), []string{fmt.Sprint("c", i%3)}, []string{"10.0.0.1"}), nil, at(1))
		if i%5 == 0 {
			c.Delete("a")
		}
	}
	close(stop)
	wg.Wait()
}

// Set allocates no memory if the pod has the same IDs, name and addresses as before.
func TestSetOfTheSameAllocatesNothing(t *testing.T) {
	c := pleg.NewCache()
	s := lookupStatus("a", "web", 1, []string{"c1"}, []string{"10.0.0.1"})
	if got := testing.AllocsPerRun(100, func() { c.Set("a", s, nil, at(1)) }); got > 0 {
		t.Errorf("it allocates %v times", got)
	}
}

// Look-ups find removed pods and containers for one minute. GoneAt is the time of the first list
// without them.
func TestLookupsOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := plegtest.NewPod("a", plegtest.Running("a1"), plegtest.Running("a2"))
		pod.Namespace, pod.Name, pod.Labels = "shop", "cart-0", map[string]string{"app": "cart"}
		n.SetPods(pod)
		n.SetIPs("a", "10.0.0.1")
		n.start()
		began := time.Now()
		look := func(what string, s *pleg.PodStatus, found bool, gone time.Duration) {
			t.Helper()
			switch {
			case !found || s.ID != "a" || s.Labels["app"] != "cart":
				t.Errorf("%s: %v, %v", what, s, found)
			case gone == 0 && !s.GoneAt.IsZero() || gone > 0 && s.GoneAt.Sub(began) != gone:
				t.Errorf("%s: gone at %v", what, s.GoneAt.Sub(began))
			}
		}
		n.RemoveContainer("a", "a1")
		time.Sleep(1500 * time.Millisecond)
		s, found := n.cache.ByContainerID("containerd://a1")
		look("a container that is gone", s, found, time.Second)
		if s.FindContainerStatusByID("containerd://a1") == nil {
			t.Error("the status is not one that shows it")
		}
		s, found = n.cache.ByContainerID("a2")
		look("one that is there", s, found, 0)

		n.RemovePod("a")
		other := plegtest.NewPod("b", plegtest.Running("b1"))
		other.Namespace, other.Name = "shop", "cart-0"
		n.SetPod(other)
		n.SetIPs("b", "10.0.0.1")
		time.Sleep(time.Second)
		for what, found := range map[string][]*pleg.PodStatus{
			"name": n.cache.ByName("shop", "cart-0"), "address": n.cache.ByIP("10.0.0.1"),
		} {
			want(t, what, uidsOf(found...), "b", "a")
			look(what, found[len(found)-1], true, 2*time.Second)
		}
		if s, exists, _ := n.cache.Lookup("a"); exists || len(s.ContainerStatuses) > 0 {
			t.Errorf("by UID: %v, %v", s, exists)
		}
		time.Sleep(58 * time.Second) // a minute after the first container was removed
		s, found = n.cache.ByContainerID("a2")
		look("the other container", s, found, 2*time.Second)
		time.Sleep(3 * time.Second)
		for _, id := range []string{"a1", "a2"} {
			if s, found := n.cache.ByContainerID(id); found {
				t.Errorf("%s after a minute: %v", id, s)
			}
		}
		want(t, "name at last", uidsOf(n.cache.ByName("shop", "cart-0")...), "b")
	})
}

// At most 20,000 keys of removed objects are kept.
func TestLookupsOfWhatIsGoneAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		const pods = 12_000
		list := make([]*pleg.Pod, pods)
		for i := range list {
			id := fmt.Sprint("pod-", i)
			list[i] = bare(types.UID(id), plegtest.Running(id+"-a"))
		}
		n.SetPods(list...)
		n.relist()
		n.SetPods()
		n.relist()
		found := 0
		for i := range list {
			if _, is := n.cache.ByContainerID(fmt.Sprint("pod-", i, "-a")); is {
				found++
			}
		}
		if found == 0 || found > 10_000 { // each pod had two keys: a name and an ID
			t.Errorf("%d of %d containers are found", found, pods)
		}
	})
}

// The cost of a look-up with a full ID does not depend on the number of IDs with the same first
// twelve characters.
func TestLookupAmongIDsThatBeginAlike(t *testing.T) {
	allocations := func(pods int) float64 {
		cache := pleg.NewCache()
		for i := range pods {
			id := fmt.Sprintf("container-of-pod-%05d", i)
			status := &pleg.PodStatus{ID: types.UID(id), ContainerStatuses: []*pleg.Status{{ID: pleg.ContainerID{ID: id}}}}
			cache.Set(status.ID, status, nil, time.Now())
		}
		return testing.AllocsPerRun(10, func() {
			if s, found := cache.ByContainerID("container-of-pod-00001"); !found || s.ID != "container-of-pod-00001" {
				t.Errorf("found %q", s.ID)
			}
		})
	}
	if few, many := allocations(2), allocations(2000); many > few {
		t.Errorf("%v allocations beside another, %v beside 2,000", few, many)
	}
}

// The first 12 or more characters of an ID find a container, unless another container's ID begins
// with the same characters.
func TestLookupByTheBeginningOfAnID(t *testing.T) {
	const one, another = "3f2a5d7c9b1e0001", "3f2a5d7c9b1e0002"
	cache := pleg.NewCache()
	set := func(uid types.UID, id string) {
		status := &pleg.PodStatus{ID: uid, ContainerStatuses: []*pleg.Status{{ID: pleg.ContainerID{ID: id}}}}
		cache.Set(uid, status, nil, time.Now())
	}
	found := func(id string) types.UID {
		s, _ := cache.ByContainerID(id)
		return s.ID
	}
	set("a", one)
	for id, want := range map[string]types.UID{
		one: "a", "containerd://" + one: "a", one[:12]: "a", one[:15]: "a",
		one[:11]: "", one + "0": "", another: "", "": "",
	} {
		if got := found(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
	set("b", another)
	for id, want := range map[string]types.UID{one: "a", another: "b", one[:12]: "", one[:15]: ""} {
		if got := found(id); got != want {
			t.Errorf("%q beside another: %q, want %q", id, got, want)
		}
	}
}

// Each of these 4,500 pods loses two keys, its name and its container ID. The cache counts each key
// once and so keeps all 9,000 keys.
func TestLookupsOfWhatIsGoneAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var list []*pleg.Pod
		for i := range 4500 { // each pod has a name and a container
			list = append(list, bare(types.UID(fmt.Sprint("p", i)), plegtest.Exited(fmt.Sprint("c", i))))
		}
		n.SetPods(list...)
		n.start()
		n.SetPods()
		time.Sleep(2 * time.Second)
		found := 0
		for i := range list {
			if _, ok := n.cache.ByContainerID(fmt.Sprint("c", i)); ok {
				found++
			}
		}
		if found < len(list) {
			t.Errorf("of %d containers and as many names that are gone, %d are found", len(list), found)
		}
	})
}

// Rule 26: if no inspection of a pod has succeeded, look-ups return the listed fields, also for one
// minute after its removal.
func TestRule26LookupsOfAPodThatCannotBeInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		pod := bare("a", plegtest.Exited("container-a1"))
		pod.Namespace, pod.Name, pod.Labels = "shop", "cart", map[string]string{"app": "cart"}
		n.SetPods(pod)
		n.Fail(plegtest.GetPodStatus, "a", errors.New("broken"))
		n.start()
		look := func(gone bool) {
			t.Helper()
			byID, _ := n.cache.ByContainerID("container-a1")
			if s := byID.ContainerStatuses[0]; s.State != pleg.ContainerStateExited || !s.EndUnknown {
				t.Errorf("an end that no inspection has shown: %+v", s)
			}
			for what, found := range map[string][]*pleg.PodStatus{"name": n.cache.ByName("shop", "cart"), "ID": {byID}} {
				if len(found) != 1 || found[0].Namespace != "shop" || found[0].Name != "cart" || found[0].Labels["app"] != "cart" ||
					len(found[0].ContainerStatuses) != 1 || found[0].GoneAt.IsZero() == gone {
					t.Errorf("by %s, gone %v: %+v", what, gone, found)
				}
			}
		}
		time.Sleep(5 * time.Second)
		look(false)
		n.RemovePod("a")
		time.Sleep(5 * time.Second)
		look(true)
		time.Sleep(time.Minute)
		if got := n.cache.ByName("shop", "cart"); len(got) != 0 {
			t.Errorf("a minute later: %+v", got)
		}
	})
}

// Rule 26: a new container of a known pod came and went while the pod's inspection was slow.
// Look-ups find it for one minute.
func TestRule26LookupOfAContainerThatWasNeverInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.SetPods(bare("a", plegtest.Running("container-a1")))
		n.start()
		n.Delay(plegtest.GetPodStatus, "a", 30*time.Second)
		n.SetContainer("a", "container-a2", pleg.ContainerStateRunning)
		time.Sleep(1500 * time.Millisecond)
		n.RemoveContainer("a", "container-a2")
		time.Sleep(2 * time.Second)
		status, found := n.cache.ByContainerID("container-a2")
		if !found || status.GoneAt.IsZero() || status.FindContainerStatusByID("container-a2") == nil || status.ID != "a" {
			t.Errorf("%v %+v", found, status)
		}
	})
}

// Rule 26: a pod that has ended keeps its address. In the result of ByIP, the pod that uses the
// address now comes first, even if it is older.
func TestRule26PodWithAReadySandboxComesFirst(t *testing.T) {
	cache := pleg.NewCache()
	owner := lookupStatus("owner", "owner", 1, nil, []string{"10.0.0.1"})
	owner.SandboxStatuses[0].State = runtimeapi.PodSandboxState_SANDBOX_READY
	ended := lookupStatus("ended", "ended", 2, nil, []string{"10.0.0.1"})
	ended.SandboxStatuses[0].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	cache.Set("owner", owner, nil, at(1))
	cache.Set("ended", ended, nil, at(1))
	if found := cache.ByIP("10.0.0.1"); len(found) != 2 || found[0].ID != "owner" {
		t.Errorf("%+v", found)
	}
}
