package contract_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/randtest"
)

func TestGetAllIsSorted(t *testing.T) {
	c := pleg.NewCache()
	for _, uid := range []types.UID{"b", "c", "a"} {
		c.Set(uid, status(uid, ""), nil, at(1))
	}
	var uids []types.UID
	for _, s := range c.GetAll() {
		uids = append(uids, s.ID)
	}
	if !slices.Equal(uids, []types.UID{"a", "b", "c"}) {
		t.Error(uids)
	}
}

// naiveCache is the contract of the cache in its simplest form. It remembers every value that it
// was given, and derives the answers from them.
type naiveCache map[types.UID]*naiveEntry

type naiveEntry struct {
	status           string
	err              error
	known            bool
	stored, observed int
	absent           int
}

// For random histories, the cache gives the same answers as naiveCache.
func TestCacheModel(t *testing.T) {
	randtest.Check(t, 100, func(t *testing.T, r *rand.Rand) {
		c := pleg.NewCache()
		uids := []types.UID{"a", "b", "c"}
		model := naiveCache{}
		for _, uid := range uids {
			model[uid] = &naiveEntry{}
		}
		global := 0
		broken := errors.New("broken")
		for i := range 30 {
			uid, when := randtest.Pick(r, uids...), 1+r.IntN(30)
			m := model[uid]
			what := randtest.Pick(r, "set", "fail", "observe", "delete", "update")
			t.Log(what, uid, when)
			switch what {
			case "set":
				name := fmt.Sprint(i)
				updated := c.Set(uid, status(uid, name), nil, at(when))
				if want := !m.known || m.stored <= when; updated != want {
					t.Fatalf("updated %v", updated)
				}
				if updated {
					m.status, m.err = name, nil
					m.store(when)
				}
			case "fail":
				if c.Set(uid, nil, broken, at(when)) {
					m.err = broken
					m.store(when)
				}
			case "observe":
				c.SetObservedTime(uid, at(when))
				if m.known {
					m.observed = max(m.observed, when)
				} else {
					m.absent = max(m.absent, when)
				}
			case "delete":
				c.Delete(uid)
				*m = naiveEntry{}
			case "update":
				c.UpdateTime(at(when))
				global = max(global, when)
				for _, m := range model {
					if m.absent <= global {
						m.absent = 0
					}
				}
			}
			for uid, m := range model {
				s, err := c.Get(uid)
				if s.ID != uid || s.Name != m.status || !errors.Is(err, m.err) {
					t.Fatalf("%s: the cache has %q, %v; not %q, %v", uid, s.Name, err, m.status, m.err)
				}
				for minTime := range 31 {
					if got, want := fresh(c, uid, at(minTime)), m.seen(global) > minTime; got != want {
						t.Fatalf("%s at %d s: fresh is %v", uid, minTime, got)
					}
				}
			}
		}
	})
}

func (m *naiveEntry) store(when int) {
	m.known, m.stored, m.observed, m.absent = true, when, when, 0
}

func (m *naiveEntry) seen(global int) int {
	if m.known {
		return max(m.observed, global)
	}
	return max(m.absent, global)
}

// A nil status without an error is stored as an empty status.
func TestSetOfNothing(t *testing.T) {
	c := pleg.NewCache()
	c.Set("a", status("a", "good"), nil, at(1))
	c.Set("a", nil, nil, at(2))
	if s, err := c.Get("a"); s == nil || s.ID != "a" || s.Name != "" || err != nil {
		t.Errorf("got %v %v", s, err)
	}
}
