package plan

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/kubepleg/pleg"
)

// A plan of the method end first stops all containers except sidecars, at the same time. Then it
// stops the sidecars one after another, in reverse order.
func TestEnd(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "init:i", "side:one", "side:two", "a", "b")
	for _, c := range []struct {
		seen *pleg.PodStatus
		want string
	}{
		{seen("a running", "b running", "two running", "one running", "i 0"), "a b, two, one"},
		{seen("a 0", "two unknown", "one 1", "i 0"), "two"},
		{seen("i running"), "i"},
		{seen("stranger running", "one running"), "stranger, one"},
		{seen("a created"), ""},
	} {
		var steps []string
		for _, step := range (View{Pod: p, Seen: c.seen}).end().Kill {
			var names []string
			for _, k := range step {
				names = append(names, k.Name)
			}
			steps = append(steps, strings.Join(names, " "))
		}
		if got := strings.Join(steps, ", "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// leftovers keeps the newest dead instance of each container, and every instance that runs or is
// about to run.
func TestLeftovers(t *testing.T) {
	numbered := func(s *pleg.PodStatus) *pleg.PodStatus {
		for i, c := range s.ContainerStatuses {
			c.ID.ID += fmt.Sprint(i)
		}
		return s
	}
	for _, c := range []struct {
		seen *pleg.PodStatus
		want string
	}{
		{seen("a running", "a 1", "a 2", "b 0", "a 3"), "a2 a4"},
		{seen("a 1", "b 0"), ""},
		{seen("a created", "a 1"), ""},
		{seen("a running", "a created"), "a1"},
	} {
		containers, sandboxes := View{Seen: numbered(c.seen)}.leftovers()
		var ids []string
		for _, s := range containers {
			ids = append(ids, s.ID.ID)
		}
		if got := strings.Join(ids, " "); got != c.want || len(sandboxes) > 0 {
			t.Errorf("%q and %q, want %q", got, sandboxes, c.want)
		}
	}
}
