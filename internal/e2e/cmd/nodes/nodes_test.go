package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	kept "github.com/kubepleg/pleg/internal/e2e/results"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// Every combination of a node and a runtime is either run or has a reason not to be run.
func TestCellsHaveReasons(t *testing.T) {
	for _, c := range everyCell() {
		if !slices.Contains(c.runtimes, c.runtime) && reason(c.name, c.runtime, "") == "" {
			t.Errorf("%s is not run, without a reason", c)
		}
	}
	for _, n := range nodes {
		for _, r := range n.runtimes {
			if !slices.Contains(runtimes, r) {
				t.Errorf("%s has %s, which is no column", n.name, r)
			}
		}
	}
}

// The table in the document shows the stored results.
func TestDocumentHasTheResults(t *testing.T) {
	root, err := testnode.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := kept.Read[results](filepath.Join(root, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), beginning+"\n"+all.table(allCells())+end) {
		t.Errorf("%s has another table than %s: go run ./cmd/nodes -draw", document, resultsFile)
	}
}

// A result is read correctly even if the console also contains noise of the kernel and the
// terminal. A test that was skipped without a reason is an error.
func TestConsole(t *testing.T) {
	const passed, skipped = "--- PASS: TestA (0.1s)\n", "--- SKIP: TestRunbookOfBlockedLists (0.1s)\n"
	for name, test := range map[string]struct{ console, runtime, want string }{
		"passes": {"NODE kernel 6.1\r\n--- PASS: TestA (0s)\r\n    --- PASS: TestA/x (0s)\r\nNODE exit 0\r\n", "crio", ""},
		"fails": {passed + "--- FAIL: TestB (0.1s)\nNODE exit 1\n", "crio",
			"the tests ended with 1; failed: TestB"},
		"fails, and passes by itself": {passed + "--- FAIL: TestB (0.1s)\nNODE exit 1\n--- PASS: TestB (0.1s)\nNODE exit 0\n",
			"crio", ""},
		"fails twice": {passed + "--- FAIL: TestB (0s)\nNODE exit 1\n--- FAIL: TestB (0s)\nNODE exit 1\n",
			"crio", "the tests ended with 1; failed: TestB"},
		"skips, with a reason": {passed + skipped + "NODE exit 0\n", "crio", ""},
		"skips, without": {passed + skipped + "NODE exit 0\n", "containerd-2.4",
			"TestRunbookOfBlockedLists was skipped, and no reason is known"},
		"ends early": {passed + "Kernel panic\n", "crio", "the node has ended before its tests"},
		"runs none":  {"NODE exit 0\n", "crio", "no test ran"},
	} {
		r := &result{}
		r.read(strings.NewReader(test.console), "node")
		got := ""
		if err := r.verdict(cell{nodes[0], test.runtime}); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	r := &result{}
	r.take("    away_test.go:1: | containerd-1.7 | all | 15 of 27 | all 17 of 27 | none 12 of 27 |")
	if r.Lost != "15 of 27" || len(r.Right) != 2 || r.Right[0] != "all 17 of 27" {
		t.Errorf("%+v", r)
	}
}

// busybox's cpio can unpack an archive. The archive contains the folders and, for each path, the
// first file that was added.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	a := &archive{w: &b, has: map[string]bool{}}
	a.add("a/b/file", 0o640|unix.S_IFREG, []byte("content"))
	a.add("a/b/file", 0o640|unix.S_IFREG, []byte("later"))
	a.add("a/link", 0o777|unix.S_IFLNK, []byte("b/file"))
	if err := a.end(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "busybox", "cpio", "-i")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(b.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	content, err := os.ReadFile(filepath.Join(dir, "a", "link"))
	if err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a", "b", "file")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
}
