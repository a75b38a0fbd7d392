package plegz

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/kubepleg/pleg"
)

// Healthz returns a handler for an agent's /healthz: 200 while the generator is healthy, and 503
// with the reason while it is not. The answer is JSON: a Condition as on the page, and the
// pleg.HealthReport, cut as on the page. Items of callsInFlight, failingPods and
// stuckRelist.suspects also have the pod's namespace and name, and container, containerID and
// sandboxID, as far as they are known. Healthz panics if generator is nil.
//
// Use it for readiness and alerts. It fails while the runtime is stuck or away, and a restarted
// agent would meet the same runtime, without its history. So let a liveness probe fail only after
// 15 minutes.
//
// Unlike Handler, it answers every client. The answer names pods whose inspection is stuck or
// fails, with the runtime's errors, and pods with unconfirmed exits.
func Healthz(generator *pleg.GenericPLEG) http.Handler {
	if generator == nil {
		panic("plegz: Healthz needs a generator") //nolint:forbidigo // a mistake in the program
	}
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
		var body bytes.Buffer
		_ = json.Indent(&body, encoded(c.found), "", "  ") // cannot fail: it was just encoded
		header.Set("Content-Type", "application/json")
		if !c.report.Healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = body.WriteTo(w) // the client may be gone
	})
}
