package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// results are the measurements, in the format of the file.
type results struct {
	Runs     []string   `json:"runs"`
	Outcomes []*outcome `json:"outcomes"`
}

// outcome contains the measurements of one kind with one kubelet.
type outcome struct {
	Kind    string `json:"kind"`
	Kubelet string `json:"kubelet"`
	Samples string `json:"milliseconds,omitempty"` // separated by spaces, to keep the file short
	Hits    int    `json:"hits,omitempty"`         // number of checks that succeeded
	All     int    `json:"all,omitempty"`          // number of checks
}

func (o *outcome) add(d time.Duration) {
	o.Samples = strings.TrimSpace(fmt.Sprintf("%s %.1f", o.Samples, float64(d)/float64(time.Millisecond)))
}

func (o *outcome) quantile(q float64) time.Duration {
	var samples measure.Samples
	for field := range strings.FieldsSeq(o.Samples) {
		d, _ := time.ParseDuration(field + "ms")
		samples = append(samples, d)
	}
	return samples.Quantile(q)
}

// readResults returns the results in a file, or empty results if there is no file.
func readResults(path string) (*results, error) {
	r := &results{}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	return r, errors.Join(err, json.Unmarshal(content, r))
}

// begin records the start of a run.
func (r *results) begin() {
	r.Runs = append(r.Runs, fmt.Sprintf("%s, `go test %s`, %d CPUs; load average of a minute %s before",
		time.Now().UTC().Format("2006-01-02 15:04"), strings.Join(os.Args[1:], " "), runtime.NumCPU(), loadAverage()))
}

func loadAverage() string {
	content, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(content), " ")
	return one
}

// write ends the run and writes all results to a file.
func (r *results) write(path string) error {
	r.Runs[len(r.Runs)-1] += " and " + loadAverage() + " after"
	var content bytes.Buffer
	e := json.NewEncoder(&content)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return errors.Join(e.Encode(r), os.WriteFile(path, content.Bytes(), 0o644))
}

// outcome returns the measurements of one kind with one kubelet. If there are none, it adds an
// empty outcome.
func (r *results) outcome(kubelet, kind string) *outcome {
	for _, o := range r.Outcomes {
		if o.Kubelet == kubelet && o.Kind == kind {
			return o
		}
	}
	o := &outcome{Kind: kind, Kubelet: kubelet}
	r.Outcomes = append(r.Outcomes, o)
	return o
}

// table returns a table in Markdown. A cell shows the median, the 90th percentile and the number of
// samples, or how many checks succeeded.
func (r *results) table() string {
	var rows []string
	cells := make(map[[2]string]string)
	for _, o := range r.Outcomes {
		if !slices.Contains(rows, o.Kind) {
			rows = append(rows, o.Kind)
		}
		cells[[2]string{o.Kind, o.Kubelet}] = o.String()
	}
	var b strings.Builder
	b.WriteString("| p50 / p90 (n) |")
	for _, v := range variants {
		b.WriteString(" " + v.name + " |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", 1+len(variants)) + "\n")
	for _, kind := range rows {
		b.WriteString("| " + kind + " |")
		for _, v := range variants {
			fmt.Fprintf(&b, " %s |", cells[[2]string{kind, v.name}])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// String returns a cell of the table.
func (o *outcome) String() string {
	var parts []string
	if n := len(strings.Fields(o.Samples)); n > 0 {
		parts = append(parts, fmt.Sprintf("%s / %s (%d)", show(o.quantile(0.5)), show(o.quantile(0.9)), n))
	}
	if o.All > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d", o.Hits, o.All))
	}
	return strings.Join(parts, ", ")
}

func show(d time.Duration) string {
	if d < 2*time.Second {
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// check returns an error if a kubelet on the library exceeds a limit. Each limit compares the same
// quantile of two kubelets: ours may be at most factor times theirs. The results are valid only if
// the machine does nothing else.
func (r *results) check() error {
	var errs []error
	for _, l := range []struct {
		kind, ours, theirs string
		quantile, factor   float64
	}{
		{successor, "ours", "stock", 0.5, 0.2},
		{successor, "ours", "stock, EventedPLEG", 0.5, 0.6},
		{successor, "ours, hints only", "stock, EventedPLEG", 0.5, 1.1},
		{successor, "ours, hints only", "stock, EventedPLEG", 0.9, 1.1},
		// Between two runs of the same kubelet, the CPU time of an idle minute differs by this
		// factor.
		{idleTogether, "ours", "stock", 0.5, 1.05},
	} {
		ours, theirs := r.outcome(l.ours, l.kind).quantile(l.quantile), r.outcome(l.theirs, l.kind).quantile(l.quantile)
		if theirs > 0 && float64(ours) > l.factor*float64(theirs) {
			errs = append(errs, fmt.Errorf("%s: %s: p%.0f is %s, more than %g times %s of %s", l.ours, l.kind, 100*l.quantile,
				show(ours), l.factor, show(theirs), l.theirs))
		}
	}
	return errors.Join(errs...)
}

// TestCheck shows that check accepts a result at the limit, and none above it.
func TestCheck(t *testing.T) {
	for ours, want := range map[time.Duration]bool{100 * time.Millisecond: true, 101 * time.Millisecond: false} {
		r := &results{}
		r.outcome("stock", successor).add(500 * time.Millisecond)
		r.outcome("ours", successor).add(ours)
		if err := r.check(); (err == nil) != want {
			t.Errorf("%v: %v", ours, err)
		}
	}
}

// TestSamples shows that the samples in the documents are the same after they are written and read
// again.
func TestSamples(t *testing.T) {
	r, err := readResults(filepath.Join("..", "..", "..", "..", "docs", "bench", "kubelet.json"))
	if err != nil {
		t.Fatal(err)
	}
	const row = "| container killed → successor created | 617 ms / 866 ms (20) | 55 ms / 66 ms (60) | " +
		"59 ms / 66 ms (60) | 19 ms / 28 ms (60) |  |\n"
	if !strings.Contains(r.table(), row) {
		t.Errorf("the table is\n%s, want\n%s", r.table(), row)
	}
	path := filepath.Join(t.TempDir(), "samples.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	again, err := readResults(path)
	if err != nil || again.table() != r.table() {
		t.Errorf("after writing and reading they are\n%s (%v), want\n%s", again.table(), err, r.table())
	}
}

// TestLog shows which line of a kubelet's log saidAt finds.
func TestLog(t *testing.T) {
	log := "a line of another form about b\n" +
		`I0203 04:05:06.000007      12 kubelet.go:1] "SyncLoop (PLEG): event" event="ContainerDied of a"` + "\n" +
		`I0203 04:05:06.000008      12 kubelet.go:1] "SyncLoop (PLEG): event" event="ContainerDied of b"` + "\n" +
		`I0203 04:05:06.000009      12 kubelet.go:1] "SyncLoop (PLEG): event" event="ContainerDied of b"` + "\n"
	want := time.Date(time.Now().Year(), 2, 3, 4, 5, 6, 8000, time.Local)
	if at, found := saidAt(log, "SyncLoop", "of b"); !found || !at.Equal(want) {
		t.Errorf("the line was found: %t, at %v", found, at)
	}
	if _, found := saidAt(log, "SyncLoop", "of c"); found {
		t.Error("a missing line was found")
	}
}
