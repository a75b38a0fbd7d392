package docs_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pinned returns the version of a module, of go or of toolchain in the text of a go.mod. If there
// is no version, it returns "-".
func pinned(mod, module string) string {
	line := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(module) + ` (?:go|v)?([0-9]\S*)`).FindStringSubmatch(mod)
	if line == nil {
		return "-"
	}
	return line[1]
}

// minor returns the first two numbers of a version: 1.25 for 1.25.0.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[0] + "." + cmp.Or(strings.Join(parts[1:min(len(parts), 2)], ""), "-")
}

// README.md and docs/REFERENCE.md name the versions and the projects that hack/compat.sh tests.
func TestCompatibilityIsWhatTheGateRuns(t *testing.T) {
	lowest, newest := readFile(t, "go.mod"), readFile(t, "internal/compat/newest.mod")
	files, err := filepath.Glob("internal/compat/sets/*.mod")
	if err != nil {
		t.Fatal(err)
	}
	var clients []int // minor versions
	reference := []string{
		fmt.Sprintf("now %s to %s.", minor(pinned(lowest, "go")), minor(pinned(newest, "toolchain"))),
	}
	for _, file := range files {
		mod := readFile(t, file)
		client := pinned(mod, "k8s.io/client-go")
		n, err := strconv.Atoi(strings.TrimPrefix(minor(client), "0."))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		clients = append(clients, n)
		if name := strings.TrimSuffix(filepath.Base(file), ".mod"); !strings.HasPrefix(name, "client-go-") {
			reference = append(reference, name)
		}
	}
	slices.Sort(clients)
	clients = slices.Compact(clients)
	first, last := clients[0], clients[len(clients)-1]
	if len(clients) != last-first+1 {
		t.Errorf("a minor version of client-go is missing: %v", clients)
	}
	if minor(pinned(lowest, "k8s.io/cri-api")) != minor(pinned(lowest, "k8s.io/apimachinery")) {
		t.Error("go.mod has two minor versions of Kubernetes")
	}
	for document, rows := range map[string][]string{
		"README.md": {
			fmt.Sprintf("| Go | %s to %s |", minor(pinned(lowest, "go")), minor(pinned(newest, "toolchain"))),
			fmt.Sprintf("| Kubernetes modules | v%s to v%s (`apimachinery`, `cri-api`) |",
				minor(pinned(lowest, "k8s.io/cri-api")), minor(pinned(newest, "k8s.io/cri-api"))),
			fmt.Sprintf("| client-go in the same program | v0.%d to v0.%d; ", first, last),
		},
		"docs/REFERENCE.md": append(reference,
			fmt.Sprintf("| client-go in the same program | v0.%d to v0.%d |", first, last)),
	} {
		text := readFile(t, document)
		for _, row := range rows {
			if !strings.Contains(text, row) {
				t.Errorf("%s does not say:\n%s", document, row)
			}
		}
	}
}
