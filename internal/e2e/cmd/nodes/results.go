package main

import (
	"fmt"
	"strings"

	kept "github.com/kubepleg/pleg/internal/e2e/results"
)

// The file resultsFile contains the results, and the file document contains their table.
const (
	resultsFile = "docs/bench/nodes.json"
	document    = "docs/RUNTIMES.md"
)

type result struct {
	Date    string
	Kernel  string `json:",omitempty"`
	Runtime string `json:",omitempty"` // the version that the runtime reports
	Passed  int
	Failed  []string `json:",omitempty"`
	// Second are the tests that failed at first and passed when they were run again.
	Second  []string `json:",omitempty"`
	Skipped []string `json:",omitempty"`
	// Exit is the exit code of the tests. It is empty if the tests did not end.
	Exit string `json:",omitempty"`
	// LeftOut is why no test ran; empty if tests ran.
	LeftOut string `json:",omitempty"`

	// These are results of TestExitsWhileTheRuntimeIsAway: its rounds, how many exit codes the
	// runtime lost, and how many ends each agent reported correctly.
	Rounds int
	Lost   string   `json:",omitempty"`
	Right  []string `json:",omitempty"`
}

// results are the last results of each cell, by the cell's name.
type results map[string]*result

// The table stands between these two lines of the document.
const (
	beginning = "<!-- make nodes writes this table -->"
	end       = "<!-- end of the table of nodes -->"
)

func (all results) draw(path string) error {
	return kept.Draw(path, beginning, end, all.table(allCells()))
}

func (all results) table(cells []cell) string {
	var b strings.Builder
	b.WriteString("| node | runtime | tests | codes lost by the runtime | ends reported right | run |\n")
	b.WriteString("|---|---|---|---|---|---|\n")
	for _, c := range cells {
		r := all[c.String()]
		if r == nil || r.LeftOut != "" {
			tests := "not run"
			if r != nil {
				tests += ": " + r.LeftOut
			}
			fmt.Fprintf(&b, "| %s | %s | %s | | | |\n", c.about, c.runtime, tests)
			continue
		}
		tests := fmt.Sprintf("%d pass", r.Passed)
		if len(r.Second) > 0 {
			tests += fmt.Sprintf(", %d of them when run again: %s", len(r.Second), strings.Join(r.Second, ", "))
		}
		if len(r.Failed) > 0 {
			tests += fmt.Sprintf(", **%d fail: %s**", len(r.Failed), strings.Join(r.Failed, ", "))
		}
		if len(r.Skipped) > 0 {
			tests += fmt.Sprintf(", %d skipped", len(r.Skipped))
		}
		if r.Exit == "" {
			tests += ", **ended early**"
		}
		runtime := r.Runtime
		if runtime == "" {
			runtime = c.runtime
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", c.about, strings.TrimSuffix(runtime, "+unknown"), tests, r.Lost,
			strings.Join(r.Right, ", "), r.Date)
	}
	return b.String()
}
