package plan

import (
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
