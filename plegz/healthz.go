package plegz

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/kubepleg/pleg"
)

// Healthz returns a handler for an agent's /healthz: 200 while the generator is healthy, and 503
// with the reason while it is not. The answer is JSON: the sentence and the notes of the page, and the
// pleg.HealthReport, its texts and lists as short as the page has them. In callsInFlight, failingPods and
// hungRelist.suspects are also namespace and name of the pod, container, containerID and sandboxID, as far as the
// pod was listed with them. It panics if generator is nil.
//
// It is for readiness and for alerts. Do not restart an agent because it fails, as a liveness
// probe would: it fails while the runtime hangs or is away. A new agent meets the same runtime,
// and has forgotten what this one saw.
//
// Unlike Handler, it answers whoever reaches it, and names the pods whose inspection hangs or
// fails, with the errors of the runtime, and those whose exit it does not confirm.
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
		_ = json.Indent(&body, encoded(c.found), "", "  ") // cannot fail: it is what was encoded
		header.Set("Content-Type", "application/json")
		if !c.report.Healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = body.WriteTo(w) // the client may be gone
	})
}
