// Package healthreport contains what package plegz and the check of plegwatch read from a
// pleg.HealthReport in the same way.
package healthreport

import (
	"slices"
	"strings"
	"time"

	"github.com/kubepleg/pleg"
)

// InspectsNone reports whether the generator is unhealthy because the runtime answers no inspection.
func InspectsNone(r *pleg.HealthReport) bool {
	return strings.HasPrefix(r.Reason, "pleg cannot inspect any pod: ")
}

// StuckContainers returns the calls about containers that have been unanswered for more than a second,
// oldest first. No list may have shown these containers.
func StuckContainers(r *pleg.HealthReport, now time.Time) []pleg.RuntimeCall {
	return slices.DeleteFunc(slices.Clone(r.CallsInFlight), func(c pleg.RuntimeCall) bool {
		return c.ObjectID == "" || now.Sub(c.Since) <= time.Second
	})
}
