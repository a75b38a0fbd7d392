// Package results stores the results of measurements in a file, and a table of them in a document.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Read returns the results in a file, by name. If path is empty or the file does not exist, it
// returns an empty map.
func Read[M ~map[string]*T, T any](path string) (M, error) {
	all := make(M)
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

// Keep writes the results to a file. It does nothing if path is empty.
func Keep(path string, all any) error {
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

// Draw replaces the table in a document. The table stands between the two lines that the arguments
// beginning and end contain.
func Draw(path, beginning, end, table string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading what to write the table into: %w", err)
	}
	before, rest, found := strings.Cut(string(text), beginning)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return fmt.Errorf("%s has no place for the table: the lines %s and %s", path, beginning, end)
	}
	return os.WriteFile(path, []byte(before+beginning+"\n"+table+end+after), 0o644)
}
