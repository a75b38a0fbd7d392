package plegz_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// viewer is a test client of the handler's stream. It applies messages as the page does.
type viewer struct {
	pods     map[string]viewedPod
	position string
}

// apply applies a message, which contains the whole state or only changes.
func (v *viewer) apply(m state) {
	if m.Full || v.pods == nil {
		v.pods = make(map[string]viewedPod)
	}
	v.position = m.Position
	for _, p := range m.Pods {
		v.pods[p.UID] = p
	}
	for uid, p := range v.pods {
		forgotten := func(l viewedLife) bool { return l.Gone > 0 && l.Gone <= m.GoneThrough }
		if p.Gone > 0 && p.Gone <= m.GoneThrough {
			delete(v.pods, uid)
			continue
		}
		p.Containers = slices.DeleteFunc(p.Containers, forgotten)
		p.Sandboxes = slices.DeleteFunc(p.Sandboxes, forgotten)
		v.pods[uid] = p
	}
}

// read applies all messages that the stream has received.
func (v *viewer) read(t *testing.T, s *stream) {
	t.Helper()
	for len(s.messages) > 0 {
		v.apply(message(t, s))
	}
}

// expect compares the viewer's pods with those of a viewer that has just connected.
func (v *viewer) expect(t *testing.T, n *node) {
	t.Helper()
	var anew viewer
	anew.apply(n.state())
	if diff := cmp.Diff(anew.pods, v.pods, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("a new viewer (-) sees something else:\n%s", diff)
	}
}

// A viewer that applied changes shows the same pods as a new viewer. This holds even if the viewer
// was away in between. It also holds if a short history forgets items at once.
func TestViewersSeeTheSame(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				n := newNode(t, plegz.WithHistory(1+random.IntN(15)))
				var v viewer
				s := n.open("/?format=stream", "")
				present := make(map[types.UID]string) // each pod's container
				made := 0
				act := func() {
					uids := slices.Sorted(maps.Keys(present))
					if made++; len(uids) == 0 || len(uids) < 6 && random.IntN(3) == 0 {
						id := fmt.Sprint("container-", made)
						present[n.setPod("team", fmt.Sprint("pod-", random.IntN(8)), plegtest.Running(id))] = id
						return
					}
					uid := uids[random.IntN(len(uids))]
					if random.IntN(3) == 0 {
						n.RemovePod(uid)
						delete(present, uid)
						return
					}
					id := fmt.Sprint("container-", made)
					n.RestartContainer(uid, present[uid], id)
					n.RemoveContainer(uid, present[uid])
					present[uid] = id
				}
				for range 50 {
					for range 1 + random.IntN(8) {
						act()
					}
					if random.IntN(4) == 0 { // reconnects after some changes
						s.end()
						synctest.Wait()
						v.read(t, s)
						for range random.IntN(20) {
							act()
							n.pass(time.Duration(random.IntN(500)) * time.Millisecond)
						}
						s = n.open("/?format=stream", v.position)
					}
					n.pass(2500 * time.Millisecond)
					v.read(t, s)
					v.expect(t, n)
				}
			})
		})
	}
}
