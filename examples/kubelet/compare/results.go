package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// kind is what was measured, as the table says it.
type kind string

const (
	crashed           kind = "container killed → successor created"
	announced         kind = "of that, the runtime's share: killed → the event of its end"
	started           kind = "manifest written → pod Running in `/pods`"
	restarted         kind = "kubelet killed and started → all pods Running in `/pods`"
	thawedAfterFreeze kind = "containerd frozen and thawed: thaw → successor of what was killed meanwhile"
	crashedBesideHung kind = "one pod hangs: another's container killed → successor created"
	agreed            kind = "pods come and go under restarts and faults: the end → `/pods` says what containerd says"
	startedBesideHung kind = "one pod hangs: manifest written → pod Running in `/pods`"
)

// results are the samples of every kubelet.
type results struct {
	variants []variant

	mu      sync.Mutex
	kinds   []kind // in the order of their first sample; guarded by mu
	samples map[kind]map[string]measure.Samples
}

func newResults(list []variant) *results {
	return &results{variants: list, samples: make(map[kind]map[string]measure.Samples)}
}

func (r *results) add(v variant, k kind, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.samples[k] == nil {
		r.samples[k] = make(map[string]measure.Samples)
		r.kinds = append(r.kinds, k)
	}
	r.samples[k][v.name] = append(r.samples[k][v.name], d)
	say("  %s: %s", k, show(d))
}

// table returns the results as Markdown: median, 90th percentile, number of samples.
func (r *results) table() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	b.WriteString("| p50 / p90 (n) |")
	for _, v := range r.variants {
		fmt.Fprintf(&b, " %s |", v.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.variants)) + "\n")
	for _, k := range r.kinds {
		fmt.Fprintf(&b, "| %s |", k)
		for _, v := range r.variants {
			s := r.samples[k][v.name]
			switch len(s) {
			case 0:
				b.WriteString(" – |")
			case 1:
				fmt.Fprintf(&b, " %s (1) |", show(s[0]))
			default:
				fmt.Fprintf(&b, " %s / %s (%d) |", show(s.Quantile(0.5)), show(s.Quantile(0.9)), len(s))
			}
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func show(d time.Duration) string {
	if d < 2*time.Second {
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// check returns what a kubelet on the library has missed.
func (r *results) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, v := range r.variants {
		if v.program != "kubelet" {
			continue
		}
		if s := r.samples[crashedBesideHung][v.name]; len(s) > 0 && slices.Max(s) > handledWithin {
			errs = append(errs, fmt.Errorf("%s: %s took %s, more than %s", v.name, crashedBesideHung, show(slices.Max(s)),
				show(handledWithin)))
		}
	}
	return errors.Join(errs...)
}

// The lines of a document that the table is written between.
const (
	beginning = "<!-- table: cd examples/kubelet/compare; go run . -write ../../../docs/KUBELET.md -->"
	end       = "<!-- end of the table -->"
)

func writeBetweenMarkers(path, table string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading what to write the table into: %w", err)
	}
	before, rest, found := strings.Cut(string(content), beginning)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return fmt.Errorf("%s has no place for the table: the lines %s and %s", path, beginning, end)
	}
	return os.WriteFile(path, []byte(before+beginning+"\n"+table+"\n"+end+after), 0o644)
}
