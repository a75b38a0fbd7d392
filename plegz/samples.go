package plegz

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg"
)

// sample is one point of each plot. Durations are in seconds.
type sample struct {
	Time          time.Time `json:"time"`
	RelistAge     *float64  `json:"relistAge,omitempty"`
	OldestCall    float64   `json:"oldestCall"`
	Relist        *float64  `json:"relist,omitempty"`
	Inspection    *float64  `json:"inspection,omitempty"`
	CallsInFlight int       `json:"callsInFlight"`
	Backlog       int       `json:"backlog"`

	number  uint64
	encoded []byte // the sample as JSON
}

// newSample returns a sample with the values of a health report. The method read adds the values of
// the metrics.
func newSample(r *pleg.HealthReport, now time.Time) *sample {
	s := &sample{Time: now, CallsInFlight: len(r.CallsInFlight), Backlog: r.Backlog}
	if !r.LastRelist.IsZero() {
		age := max(0, now.Sub(r.LastRelist).Seconds())
		s.RelistAge = &age
	}
	for _, c := range r.CallsInFlight {
		s.OldestCall = max(s.OldestCall, now.Sub(c.Since).Seconds())
	}
	return s
}

// durations computes the mean durations of relists and of inspection calls since its last reading
// of the metrics. It is not safe for concurrent use.
type durations struct {
	gatherer           prometheus.Gatherer
	relist, inspection total
}

// total is a histogram's sum and count at one reading.
type total struct {
	seconds float64
	count   uint64
}

// isInspection contains the names of the CRI calls that make up an inspection.
var isInspection = map[string]bool{"container_status": true, "podsandbox_status": true}

// exitWitness contains the values of package cri's metrics about one witness of exits.
type exitWitness struct {
	Witness  string `json:"witness"`
	Active   bool   `json:"active"`
	Exits    int    `json:"exits"`    // exits that this witness was the first to report
	Refusals int    `json:"refusals"` // containers that this witness could not watch
}

// read adds the metrics' values to a sample, and returns the witnesses of exits. If some metrics
// cannot be gathered, it uses the others.
func (d *durations) read(s *sample) (witnesses []exitWitness) {
	families, _ := d.gatherer.Gather() // missing metrics are not drawn
	var relist, inspection total
	exits, refusals := make(map[string]int), make(map[string]int)
	for _, f := range families {
		switch f.GetName() {
		case "pleg_cri_exit_witness":
			for _, m := range f.GetMetric() {
				if name := witnessOf(m.GetLabel()); name != "" {
					witnesses = append(witnesses, exitWitness{Witness: name, Active: m.GetGauge().GetValue() > 0})
				}
			}
		case "pleg_cri_exits_total":
			for _, m := range f.GetMetric() {
				exits[witnessOf(m.GetLabel())] = int(m.GetCounter().GetValue())
			}
		case "pleg_cri_exit_refusals_total":
			for _, m := range f.GetMetric() {
				refusals[witnessOf(m.GetLabel())] = int(m.GetCounter().GetValue())
			}
		case "kubelet_pleg_relist_duration_seconds":
			for _, m := range f.GetMetric() {
				relist.add(m.GetHistogram().GetSampleSum(), m.GetHistogram().GetSampleCount())
			}
		case "kubelet_runtime_operations_duration_seconds":
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if isInspection[l.GetValue()] {
						inspection.add(m.GetHistogram().GetSampleSum(), m.GetHistogram().GetSampleCount())
					}
				}
			}
		}
	}
	s.Relist, s.Inspection = relist.meanSince(&d.relist), inspection.meanSince(&d.inspection)
	for i := range witnesses {
		w := &witnesses[i]
		w.Exits, w.Refusals = exits[w.Witness], refusals[w.Witness]
	}
	return witnesses[:min(len(witnesses), maxList)]
}

// witnessOf returns the value of the label "witness", or "" if there is none.
func witnessOf[L interface {
	GetName() string
	GetValue() string
}](labels []L) string {
	for _, l := range labels {
		if l.GetName() == "witness" {
			return clip(l.GetValue())
		}
	}
	return ""
}

func (t *total) add(seconds float64, count uint64) {
	t.seconds += seconds
	t.count += count
}

// meanSince returns the mean of the observations since earlier, and sets earlier to t. It returns
// nil if there are no new observations, or if the mean is not finite.
func (t *total) meanSince(earlier *total) *float64 {
	before := *earlier
	*earlier = *t
	if t.count <= before.count {
		return nil
	}
	mean := max(0, (t.seconds-before.seconds)/float64(t.count-before.count))
	if math.IsNaN(mean) || math.IsInf(mean, 0) {
		return nil
	}
	return &mean
}
