package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// journal returns, as Markdown, what is told apart from the table: what the kubelets said of
// their health, and the runs that all this is from.
func (r *results) journal() string {
	var b strings.Builder
	if said := r.words(); said != "" {
		b.WriteString("What the kubelets said of their health:\n\n" + said + "\n")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.WriteString("The runs:\n\n")
	for _, run := range r.runs {
		fmt.Fprintf(&b, "- %s\n", run)
	}
	return b.String()
}

// table has, in each cell, median, 90th percentile and number of samples, and how often of
// all times something was as it should be.
func (r *results) table() string {
	rows, columns := r.measured()
	var b strings.Builder
	b.WriteString("| p50 / p90 (n) |")
	for _, v := range columns {
		fmt.Fprintf(&b, " %s |", v.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, k := range rows {
		fmt.Fprintf(&b, "| %s |", k)
		for _, v := range columns {
			fmt.Fprintf(&b, " %s |", r.get(v.name, k))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// String returns a cell of the table.
func (o outcome) String() string {
	var times, tally string
	switch s := o.samples; len(s) {
	case 0:
	case 1:
		times = show(s[0]) + " (1)"
	default:
		times = fmt.Sprintf("%s / %s (%d)", show(s.Quantile(0.5)), show(s.Quantile(0.9)), len(s))
	}
	if o.count.all > 0 {
		tally = fmt.Sprintf("%d of %d", o.count.hits, o.count.all)
	}
	switch {
	case times != "" && tally != "":
		return times + ", " + tally
	case times == "" && tally == "":
		return "–"
	default:
		return times + tally
	}
}

// words returns what the kubelets said, a line for each kubelet and scenario.
func (r *results) words() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, v := range variants {
		said := slices.SortedFunc(slices.Values(r.remarks[v.name]), func(a, b remark) int {
			return strings.Compare(a.scenario, b.scenario)
		})
		for _, s := range said {
			words := "nothing of its generator"
			if s.unhealthy != "" {
				words = "`" + s.unhealthy + "`"
			}
			fmt.Fprintf(&b, "- %s, %s: `/healthz` says `%s`; the log says %s\n", v.name, s.scenario, s.healthz, words)
		}
	}
	return b.String()
}

// The lines of a document that the results are written between.
const (
	beginning = "<!-- measured: cd internal/e2e/kubelet/compare; go run . -draw " +
		"-samples ../../../../docs/bench/kubelet.json -write ../../../../docs/KUBELET.md -->"
	end = "<!-- end of what is measured -->"
)

// write writes the results into the files of a document.
func (r *results) write(path string) error {
	files, err := r.files(path)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return fmt.Errorf("writing the results: %w", err)
		}
	}
	return nil
}

// files returns the files that a document's results are in, with their content: the document,
// which has the table between its markers, and below it in bench the journal, a document of
// the same name, and the plot.
func (r *results) files(path string) (map[string]string, error) {
	name := filepath.Base(path)
	bench := filepath.Join(filepath.Dir(path), "bench")
	plot := strings.ToLower(strings.TrimSuffix(name, filepath.Ext(name))) + ".svg"
	files := map[string]string{filepath.Join(bench, plot): r.plot()}
	for file, results := range map[string]string{path: r.table(), filepath.Join(bench, name): r.journal()} {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading what to write the results into: %w", err)
		}
		before, rest, found := strings.Cut(string(content), beginning)
		_, after, foundEnd := strings.Cut(rest, end)
		if !found || !foundEnd {
			return nil, fmt.Errorf("%s has no place for the results: the lines %s and %s", file, beginning, end)
		}
		files[file] = before + beginning + "\n" + results + end + after
	}
	return files, nil
}
