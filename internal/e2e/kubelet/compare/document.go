package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// document returns the results as Markdown: the table, what the kubelets said of their
// health, and the runs that all this is from.
func (r *results) document() string {
	var b strings.Builder
	b.WriteString(r.table())
	if said := r.words(); said != "" {
		b.WriteString("\nWhat the kubelets said of their health:\n\n" + said)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.WriteString("\nThe runs:\n\n")
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

// write writes the results between the markers of a document, and the plot below it.
func (r *results) write(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading what to write the table into: %w", err)
	}
	edited, err := r.between(string(content))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(edited), 0o644); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	if err := os.WriteFile(plotOf(path), []byte(r.plot()), 0o644); err != nil {
		return fmt.Errorf("writing the plot: %w", err)
	}
	return nil
}

// between returns a document with the results between its markers.
func (r *results) between(content string) (string, error) {
	before, rest, found := strings.Cut(content, beginning)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return "", fmt.Errorf("there is no place for the table: the lines %s and %s", beginning, end)
	}
	return before + beginning + "\n" + r.document() + end + after, nil
}

// plotOf returns the path of the plot of a document: with the others, below it.
func plotOf(path string) string {
	name := strings.ToLower(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	return filepath.Join(filepath.Dir(path), "bench", name+".svg")
}
