package main

import (
	"fmt"
	"strings"

	"github.com/kubepleg/pleg/internal/e2e/measure"
	kept "github.com/kubepleg/pleg/internal/e2e/results"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// results are the last results of each runtime.
type results map[string]*result

// The table stands between these two lines of a document.
const (
	beginning = "<!-- make runtimes writes this table -->"
	end       = "<!-- end of the table -->"
)

func (all results) write(path string) error {
	return kept.Draw(path, beginning, end, all.table())
}

func (all results) table() string {
	var b strings.Builder
	head := []string{
		"runtime", "lists", "event stream", "tests", "soak", "conformance",
		"runtime's event → bare reader, → `ContainerDied`", "end → `ContainerDied`, polling",
		"back after a restart: lists, event stream", "tested",
	}
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, name := range testnode.Names() {
		r := all[name]
		if r == nil {
			continue
		}
		cells := []string{
			strings.TrimSuffix(or(r.Runtime, name), "+unknown"), or(r.Lists, "?"), or(r.Stream, "?"), r.tests(),
			r.Soak.String(), r.Adapter.String(), "–", "–", or(strings.Join(r.again(), ", "), "–"), r.Date,
		}
		if strings.HasSuffix(name, "-no-events") {
			cells[0] += ", no `enable_pod_events`"
		}
		if r.Lost > 0 {
			cells[4] += fmt.Sprintf(", the runtime lost %d exits", r.Lost)
		}
		if l := r.Latency; l != nil {
			if l.Died != 0 {
				cells[6] = measure.Milliseconds(l.Reader) + ", " + measure.Milliseconds(l.Died)
			}
			cells[7] = measure.Milliseconds(l.Polling)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// again returns the recovery times of a generator with events after a restart of the runtime: for
// its lists, and for its event stream.
func (r *result) again() (times []string) {
	for _, name := range []string{"lists with hints ", "stream "} {
		for _, line := range r.Restarts {
			if value, ok := strings.CutPrefix(line, name); ok {
				times = append(times, value)
			}
		}
	}
	return times
}

func (r *result) tests() string {
	if len(r.Failed) == 0 {
		return fmt.Sprintf("%d pass", r.Tests)
	}
	return fmt.Sprintf("%d pass, **fail: %s**", r.Tests, strings.Join(r.Failed, ", "))
}

func (v verdict) String() string {
	switch {
	case v.Passed:
		return "pass"
	case v.Took == 0:
		return "–"
	default:
		return "**fail**"
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
