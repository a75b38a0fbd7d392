package pleg_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test, fuzz test, benchmark and script that a document names exists, and
// every rule of the contract names some.
func TestDocumentsNameWhatExists(t *testing.T) {
	defined := make(map[string]bool)
	var documents []string
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
	walk := func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != ".":
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range function.FindAllStringSubmatch(string(source), -1) {
				defined[m[1]] = true
			}
		case strings.HasSuffix(path, ".md"):
			documents = append(documents, path)
		}
		return nil
	}
	if err := filepath.WalkDir(".", walk); err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)_?[A-Za-z]\\w+)[`/]")
	script := regexp.MustCompile("`(?:testdata/([\\w-]+)\\.txt|TestScenarios/([\\w-]+))`")
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			if !defined[m[1]] {
				t.Errorf("%s names %s, which does not exist", document, m[1])
			}
		}
		for _, m := range script.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat("testdata/" + m[1] + m[2] + ".txt"); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
	}
	contract, err := os.ReadFile("docs/CONTRACT.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile(`(?m)^\*\*\d+\.\*\*`).Split(string(contract), -1)[1:]
	if len(rules) != 20 {
		t.Errorf("%d rules", len(rules))
	}
	for i, rule := range rules {
		if !name.MatchString(rule) {
			t.Errorf("rule %d names no test", i+1)
		}
	}
}
