package plegz_test

import (
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// expectLines checks that the text contains lines that match these regular expressions.
func (n *node) expectLines(lines ...string) {
	n.t.Helper()
	text := n.get("/?format=text").Body.String()
	for _, line := range lines {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(text) {
			n.t.Errorf("no line %s in\n%s", line, text)
		}
	}
}

// Before the first list, the text reports that no list has succeeded.
func TestTextBeforeTheFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		n := newIdleNode(t, runtime, runtime)
		n.expectLines("Not healthy: pleg has yet to be successful: .*", "last relist +never", "event stream +off")
	})
}

// The text shows each age in one unit. A pod without containers gets its own row.
func TestAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(false) // otherwise a pod might be inspected before SetStatus
		n.pass(2500 * time.Millisecond)
		for name, age := range map[string]time.Duration{
			"s": 7 * time.Second, "90s": 90 * time.Second, "min": 2 * time.Minute, "119min": 119 * time.Minute,
			"h": 3 * time.Hour, "d": 50 * time.Hour, "future": -time.Hour,
		} {
			c := plegtest.Running(name)
			c.CreatedAt = time.Now().Add(-age).UnixNano()
			uid := n.setPod("shop", name, c)
			n.SetStatus(uid, &pleg.PodStatus{ID: uid, Namespace: "shop", Name: name}) // its containers have no times
		}
		n.setPod("shop", "timeless", plegtest.Running("timeless"))
		n.SetStatus("shop/timeless", &pleg.PodStatus{ID: "shop/timeless", Namespace: "shop", Name: "timeless"})
		n.setPod("shop", "empty")
		n.pass(time.Second)
		for name, want := range map[string]string{
			"s": "8.0 s", "90s": "91 s", "min": "2 min", "119min": "119 min", "h": "3 h", "d": "2 d",
			"future": "0.0 s", "timeless": "-",
		} {
			n.expectLines("shop/" + name + " +running +" + name + " +" + name + " +running +0 +" + want + " +-")
		}
		n.expectLines("shop/empty +starting( +-){6}")
	})
}
