package scenario

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/plegtest"
)

// callLog contains the calls to the runtime since the last printCalls.
type callLog struct {
	mu    sync.Mutex
	calls []call // guarded by mu
}

type call struct {
	method plegtest.Method
	uid    types.UID
	at     time.Time
}

func (l *callLog) add(m plegtest.Method, uid types.UID, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call{m, uid, at})
}

func (l *callLog) take() []call {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return calls
}

// printCalls prints the calls since the last command "calls": the number of calls of each method.
// With "times", it prints the times of all calls; with "pod", the times of the calls for one pod.
// "calls drop" only clears the log.
func printCalls(s *scenario, c command) string {
	calls := s.calls.take()
	if c.has("drop") {
		return ""
	}
	var out strings.Builder
	for _, m := range []plegtest.Method{plegtest.GetPods, plegtest.GetPod, plegtest.GetPodStatus} {
		n, times := 0, ""
		for _, call := range calls {
			if call.method == m && (!c.has("pod") || call.uid == c.uid()) {
				n++
				times += " " + s.since(call.at)
			}
		}
		switch {
		case n == 0:
		case c.has("pod") || c.has("times"):
			fmt.Fprintf(&out, "%s at%s\n", m, times)
		default:
			fmt.Fprintf(&out, "%s %d\n", m, n)
		}
	}
	if out.Len() == 0 {
		return "no calls"
	}
	return out.String()
}
