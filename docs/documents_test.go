package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mostWords limits the number of words in all documents together, without tables of results that
// commands write. So an author of new text must shorten other text.
const mostWords = 31_400

// Every test, fuzz test, benchmark and script that a document names exists. Each rule of the
// contract has a test file, or the rule's row names a test. A test with a name like TestRule7… is
// in a file of rule 7. The documents have at most mostWords words.
func TestDocumentsNameWhatExists(t *testing.T) {
	defined := make(map[string]bool)
	var documents []string
	ofRule := regexp.MustCompile(`^TestRule(\d+)`)
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
				rule := ofRule.FindStringSubmatch(m[1])
				if rule != nil && filepath.Dir(path) == "internal/test/contract" &&
					!strings.HasPrefix(entry.Name(), ruleFile(rule[1])) {
					t.Errorf("%s stands in %s, not in a file of its rule", m[1], path)
				}
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
	table := regexp.MustCompile(`(?s)<!-- make \w+ writes this table -->.*?<!-- end`) // of results
	words := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		words += len(strings.Fields(string(table.ReplaceAll(text, nil))))
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
	if words > mostWords {
		t.Errorf("the documents have %d words, more than %d", words, mostWords)
	}
	contract, err := os.ReadFile("docs/CONTRACT.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile(`(?m)^\*\*(\d+)\.`).FindAllStringSubmatch(string(contract), -1)
	numbers := make(map[string]bool)
	for _, rule := range rules {
		numbers[rule[1]] = true
		row := regexp.MustCompile(`(?m)^\| ` + rule[1] + ` \| .*$`).FindString(string(contract))
		files, err := filepath.Glob("internal/test/contract/" + ruleFile(rule[1]) + "*_test.go")
		if err != nil || len(files) == 0 && !name.MatchString(row) {
			t.Errorf("rule %s has neither a file of tests nor a row that names one: %v", rule[1], err)
		}
	}
	if len(numbers) != 37 || len(rules) != 37 {
		t.Errorf("%d rules with %d numbers", len(rules), len(numbers))
	}
}

// ruleFile returns the first part of the names of a rule's test files.
func ruleFile(number string) string {
	if len(number) == 1 {
		number = "0" + number
	}
	return "rule" + number + "_"
}

// If a document links to a file of the repository, the file exists. If the link names a heading,
// the file contains the heading.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	links := 0
	eachDocument(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
			} else if heading != "" && !hasHeading(t, file, heading) {
				t.Errorf("%s: %s: there is no such heading", path, m[1])
			}
		}
	})
	if links < 50 {
		t.Errorf("only %d links", links)
	}
}

// Readers paste blocks of commands one after the other. So no block changes the folder: each runs
// at the root of a clone. What a block names in the repository exists. A program or an image that is
// built has a version, which is not a tag of module ends. No URL names a tag, because the tag may not
// exist yet.
func TestBlocksCanBePasted(t *testing.T) {
	block := regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")
	command := regexp.MustCompile(`(?m)^(?:cd|curl|docker|git|go|install|kubectl|make) `)
	target := regexp.MustCompile("(?m)(?:`|[A-Z]=\\w+ |^ *```sh\n)make ([a-z][a-z0-9-]*)")
	makefile, blocks := readFile(t, "Makefile"), 0
	eachDocument(t, func(path, text string) {
		if strings.Contains(text, "?ref=v") {
			t.Errorf("%s: a URL names a tag", path)
		}
		if regexp.MustCompile(`go get github.com/kubepleg/pleg[^/]`).MatchString(text) {
			t.Errorf("%s: without /cri, go get adds no checksums of the modules that cri imports", path)
		}
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			if m[1] != "sh" {
				if m[1] == "" && command.MatchString(m[2]) {
					t.Errorf("%s: these are commands, and the block is not marked with sh:\n%s", path, m[2])
				}
				continue
			}
			blocks++
			if regexp.MustCompile(`(?m)^\s*cd `).MatchString(m[2]) {
				t.Errorf("%s changes the folder:\n%s", path, m[2])
			}
			if strings.Contains(m[2], "go build") && !strings.Contains(m[2], "-X main.version=") ||
				strings.Contains(m[2], "docker buildx build") && !strings.Contains(m[2], "--build-arg VERSION=") {
				t.Errorf("%s builds without a version:\n%s", path, m[2])
			}
			if strings.Count(m[2], "git describe ") != strings.Count(m[2], "--match='v*'") {
				t.Errorf("%s takes its version from any tag:\n%s", path, m[2])
			}
			for _, file := range pathsIn(t, m[2]) {
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: make has no target %s", path, m[1])
			}
		}
	})
	if blocks < 20 {
		t.Errorf("only %d blocks", blocks)
	}
}

// pathsIn returns the paths that a block of commands names below the folders of the repository, and
// the packages that it runs.
func pathsIn(t *testing.T, block string) (paths []string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			folders = append(folders, regexp.QuoteMeta(e.Name()))
		}
	}
	below := regexp.MustCompile(`(?m)(?:^|[\s"'=<[])(?:\.\.?/)*((?:` + strings.Join(folders, "|") + `)/[\w./-]*)`)
	for _, m := range below.FindAllStringSubmatch(block, -1) {
		paths = append(paths, m[1])
	}
	run := regexp.MustCompile(`go (?:run|test)(?: -C (\S+))?(?: -\S+)* (\./\S+|\.)`)
	for _, m := range run.FindAllStringSubmatch(block, -1) {
		paths = append(paths, filepath.Join(m[1], strings.TrimSuffix(m[2], "...")))
	}
	return paths
}

// eachDocument calls f for each document of the repository.
func eachDocument(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != "." || entry.Name() == "node_modules"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			f(path, readFile(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hasHeading reports whether a document contains a heading with this anchor. It makes the anchor of
// a heading as GitHub does.
func hasHeading(t *testing.T, file, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dropped := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		if strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
