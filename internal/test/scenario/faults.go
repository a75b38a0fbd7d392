package scenario

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// fault is an active fault.
type fault struct {
	method plegtest.Method
	uid    types.UID
	heal   func()
}

// inject activates a fault for a method. If the command names a pod, the fault is only for that
// pod.
func (s *scenario) inject(c command, method string, f plegtest.Fault) {
	f.Method, f.PodUID = plegtest.Method(method), c.uid()
	f.Times = c.number("times", 0)
	f.IgnoreCancel = c.has("ignore-cancel")
	s.faults = append(s.faults, fault{f.Method, f.PodUID, s.runtime.Inject(f)})
}

func fail(s *scenario, c command) string {
	text := c.str("error")
	if text == "" {
		text = "broken"
	}
	s.inject(c, c.first(), plegtest.Fault{Err: errors.New(text), Partial: c.number("partial", 0)})
	return ""
}

func stuck(s *scenario, c command) string {
	s.inject(c, c.first(), plegtest.Fault{Block: true})
	return ""
}

func delay(s *scenario, c command) string {
	s.inject(c, c.first(), plegtest.Fault{Delay: c.duration("by")})
	return ""
}

// heal ends the faults of a method and a pod; without arguments, all faults.
func heal(s *scenario, c command) string {
	var kept []fault
	for _, f := range s.faults {
		if len(c.args) == 0 || f.method == plegtest.Method(c.first()) && f.uid == c.uid() {
			f.heal()
		} else {
			kept = append(kept, f)
		}
	}
	s.faults = kept
	return ""
}

// garbage contains the pods with bad answers, and the kind of bad data for each pod.
type garbage map[types.UID]string

// answerGarbage makes the runtime return bad data of one kind, until "garbage none".
func answerGarbage(s *scenario, c command) string {
	switch kind := c.first(); kind {
	case "nil-pod":
		s.runtime.SetPods(append(s.listed(c), nil)...)
	case "extra-pod": // the UID may be any, even empty or already listed
		pod := &pleg.Pod{ID: c.uid(), Name: "garbage", Namespace: "default"}
		addContainers(c, pod, c.args[2:])
		s.runtime.SetPods(append(s.listed(c), pod)...)
	case "panic":
		s.inject(c, c.str("call"), plegtest.Fault{Do: func(context.Context) error { panic("the runtime has a bug") }})
	case "nil-pod-list", "wrong-pod-list", "nil-status", "wrong-status", "nil-items-in-status":
		s.garbage[c.uid()] = kind
	case "none":
		delete(s.garbage, c.uid())
	default:
		c.fatalf("there is no garbage of the kind %q", kind)
	}
	return ""
}

// listed returns a copy of the runtime's list. The call is not recorded.
func (s *scenario) listed(c command) []*pleg.Pod {
	pods, err := s.runtime.GetPods(context.Background(), true)
	if err != nil {
		c.fatalf("it must come before a fault of GetPods: %v", err)
	}
	return append([]*pleg.Pod(nil), pods...)
}
