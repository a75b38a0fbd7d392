package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The results that are kept, and the document with their table.
const (
	resultsFile = "docs/bench/nodes.json"
	document    = "docs/RUNTIMES.md"
)

// result is what was seen in a cell.
type result struct {
	Date    string
	Kernel  string `json:",omitempty"`
	Runtime string `json:",omitempty"` // what it says it is
	Passed  int
	Failed  []string `json:",omitempty"`
	Skipped []string `json:",omitempty"`
	// Exit is the exit code of the tests. It is empty if they have not ended.
	Exit string `json:",omitempty"`
	// LeftOut is the reason for which nothing ran; empty if something did.
	LeftOut string `json:",omitempty"`

	// TestExitsWhileTheRuntimeIsAway: its rounds, how many exit codes the runtime lost, and how many ends each
	// agent reported right.
	Rounds int
	Lost   string   `json:",omitempty"`
	Right  []string `json:",omitempty"`
}

// results are the last results of each cell, by its name.
type results map[string]*result

func readResults(path string) (results, error) {
	all := results{}
	if path == "" {
		return all, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the results of earlier runs: %w", err)
	}
	return all, nil
}

func (all results) keep(path string) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keeping the results: %w", err)
	}
	return nil
}

// The table is between these lines of the document.
const (
	beginning = "<!-- make nodes writes this table -->\n"
	end       = "<!-- end of the table of nodes -->"
)

func (all results) draw(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading what to write the table into: %w", err)
	}
	before, rest, found := strings.Cut(string(text), beginning)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return fmt.Errorf("%s has no place for the table: the lines %s and %s", path, strings.TrimSpace(beginning), end)
	}
	return os.WriteFile(path, []byte(before+beginning+all.table(allCells())+end+after), 0o644)
}

// table is the table in Markdown.
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
