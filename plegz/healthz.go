package plegz

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/kubepleg/pleg"
)

// Healthz returns a handler for an agent's /healthz. It answers 200 while the generator is healthy,
// and 503 with the reason while it is not. The answer is one JSON object with the fields of the
// page's Condition and of the pleg.HealthReport, cut as in the page's JSON. Items of callsInFlight,
// failingPods and stuckRelist.suspects also contain the pod's namespace and name, and container,
// containerID and sandboxID, if known:
//
//	{
//	  "level": "warning",
//	  "sentence": "Degraded: container db (3f2a61d0c9b84…) of pod shop/db-0 has been stuck since …",
//	  "healthy": true,
//	  "lastRelist": "2026-11-21T10:00:03.2Z",
//	  "pods": 104,
//	  "stream": {"state": "connected", "since": "2026-11-21T08:30:00Z"},
//	  "failingPods": [{"podUID": "5d4f…", "namespace": "shop", "name": "db-0", "container": "db", …}],
//	  …
//	}
//
// Until the first list, the notes also name the problems with which the conditions "past" end; see
// WithPast. Healthz panics if generator is nil.
//
// Use the handler for readiness and alerts. A liveness probe should fail only after 15 minutes:
// while the runtime is stuck or down, a restart of the agent does not help, and loses the history.
//
// Unlike Handler, it answers every client. The answer names pods whose inspection is stuck or
// fails, with the runtime's errors, and pods with unconfirmed exits.
func Healthz(generator *pleg.GenericPLEG, past ...PastCondition) http.Handler {
	if generator == nil {
		panic("plegz: Healthz needs a generator") //nolint:forbidigo // a mistake in the program
	}
	trouble := troubleOf(past)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "plegz: only GET and HEAD are answered", http.StatusMethodNotAllowed)
			return
		}
		c := newCondition(generator.HealthReport(), generator.Pods(), generator.Clock().Now())
		c.addPast(trouble)
		var body bytes.Buffer
		_ = json.Indent(&body, encoded(report{c.Condition, c.health}), "", "  ") // cannot fail: the JSON is valid
		header.Set("Content-Type", "application/json")
		if !c.report.Healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = body.WriteTo(w) // an error means that the client has gone
	})
}
