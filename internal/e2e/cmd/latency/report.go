package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// quantiles are the columns of the table; the last one is the maximum.
var quantiles = []float64{0.5, 0.9, 0.99, 1}

// report is the table of latencies, and the targets that are met or missed.
type report struct {
	runtime string
	table   bytes.Buffer
	rows    *tabwriter.Writer

	met, missed []string
}

func newReport(runtime string) *report {
	r := &report{runtime: runtime}
	r.rows = tabwriter.NewWriter(&r.table, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(r.rows, "\tn\tp50\tp90\tp99\tmax\t")
	return r
}

// line adds a row. It does nothing if there are no samples.
func (r *report) line(what string, s measure.Samples) {
	if len(s) == 0 {
		return
	}
	fmt.Fprintf(r.rows, "%s\t%d", what, len(s))
	for _, q := range quantiles {
		fmt.Fprintf(r.rows, "\t%s", measure.Milliseconds(s.Quantile(q)))
	}
	fmt.Fprintln(r.rows, "\t")
}

// ratio adds a row with the ratio of two latencies at each quantile.
func (r *report) ratio(longer, shorter measure.Samples) {
	fmt.Fprint(r.rows, "ratio\t")
	for _, q := range quantiles {
		fmt.Fprintf(r.rows, "\t%.0f ×", float64(longer.Quantile(q))/float64(shorter.Quantile(q)))
	}
	fmt.Fprintln(r.rows, "\t")
}

// pair adds rows for a latency with hints and demand, for the same latency without them, and for
// the ratio.
func (r *report) pair(what string, hinted, polling measure.Samples) {
	if len(hinted) == 0 {
		return
	}
	r.line(what+", hints and demand", hinted)
	r.line(what+", polling only", polling)
	r.ratio(polling, hinted)
}

// within compares samples with targets at p50 and, if two targets are given, at p99.
func (r *report) within(what string, s measure.Samples, targets ...time.Duration) {
	for i, q := range []float64{0.5, 0.99}[:len(targets)] {
		if got := s.Quantile(q); len(s) > 0 {
			r.target(got <= targets[i], fmt.Sprintf("%s: p%.0f is %s, the target is %s", what, q*100,
				measure.Milliseconds(got), measure.Milliseconds(targets[i])))
		}
	}
}

func (r *report) target(met bool, what string) {
	if met {
		r.met = append(r.met, what)
	} else {
		r.missed = append(r.missed, what)
	}
}

func (r *report) print() error {
	if err := r.rows.Flush(); err != nil {
		return err
	}
	fmt.Printf("\n%s; relist period %v; %d deaths, %d at a time, %d pods idle; load average%s\n\n%s",
		r.runtime, *period, *deaths, *atOnce, *idle, loadAverage(), r.table.String())
	if len(r.met) > 0 {
		fmt.Printf("\ntargets met:\n%s\n", strings.Join(r.met, "\n"))
	}
	switch missed := strings.Join(r.missed, "\n"); {
	case missed == "":
		return nil
	case *enforce:
		return fmt.Errorf("targets missed:\n%s", missed)
	default:
		fmt.Printf("\ntargets missed:\n%s\n", missed)
		return nil
	}
}

// loadAverage returns the load of the machine. The figures are only valid on a machine that is not
// busy.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return " unknown"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return fmt.Sprintf(" %s on %d cores", one, runtime.NumCPU())
}
