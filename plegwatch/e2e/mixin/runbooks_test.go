package mixin_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const runbookURL = "https://github.com/kubepleg/pleg/blob/main/plegwatch/mixin/runbooks/"

// Each alert has a severity, a summary, a description and a runbook page. Each page belongs to an
// alert, has three sections, and names only existing metrics, options and alerts.
func TestRunbooks(t *testing.T) {
	metrics := exported(t)
	options := definedOptions(t)
	names := make(map[string]bool)
	for _, a := range alerts(t) {
		names[a.Alert] = true
	}
	pages, err := filepath.Glob(filepath.Join(mixinDir, "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) != len(names) {
		t.Errorf("%d alerts, %d pages", len(names), len(pages))
	}
	for _, a := range alerts(t) {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s has the severity %q", a.Alert, a.Labels["severity"])
		}
		place := "$labels.node"
		if a.Alert == "PlegFleetUnhealthy" {
			place = "$labels.cluster"
		}
		if a.Annotations["summary"] == "" || !strings.Contains(a.Annotations["description"], place) {
			t.Errorf("%s has no summary, or a description without %s", a.Alert, place)
		}
		if want := runbookURL + a.Alert + ".md"; a.Annotations["runbook_url"] != want {
			t.Errorf("%s has the runbook %q, not %q", a.Alert, a.Annotations["runbook_url"], want)
		}
		page := readFile(t, filepath.Join(mixinDir, "runbooks", a.Alert+".md"))
		headings := regexp.MustCompile(`(?m)^#+ .*$`).FindAllString(page, -1)
		// Comments in shell examples also start with #, but are not headings.
		headings = slices.DeleteFunc(headings, func(h string) bool { return h[1] == ' ' && h[2:] != a.Alert })
		want := []string{"# " + a.Alert, "## What it means", "## What to look at", "## What to do"}
		if !slices.Equal(headings, want) {
			t.Errorf("%s: the headings of its page are %q", a.Alert, headings)
		}
		for _, match := range regexp.MustCompile(`(?:^|[^:\w])((?:pleg|kubelet)_[a-z_]+)`).FindAllStringSubmatch(page, -1) {
			name := strings.TrimSuffix(match[1], "_bucket")
			if !isExported(metrics, name) && !slices.Contains(agents, name) {
				t.Errorf("the page of %s names %s, which does not exist", a.Alert, name)
			}
		}
		for _, name := range regexp.MustCompile(`\bWith[A-Z]\w+`).FindAllString(page, -1) {
			if !options[name] {
				t.Errorf("the page of %s names %s, which does not exist", a.Alert, name)
			}
		}
		for _, name := range regexp.MustCompile(`\bPleg[A-Z]\w+`).FindAllString(page, -1) {
			if !names[name] {
				t.Errorf("the page of %s names the alert %s, which does not exist", a.Alert, name)
			}
		}
	}
}

func isExported(metrics map[string]metric, name string) bool {
	for _, m := range metrics {
		if m.family == name {
			return true
		}
	}
	return false
}

// definedOptions returns the names of the options of packages pleg and cri.
func definedOptions(t *testing.T) map[string]bool {
	t.Helper()
	defined := make(map[string]bool)
	for _, dir := range [...]string{"../../..", "../../../cri"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".go") {
				source := readFile(t, filepath.Join(dir, e.Name()))
				for _, m := range regexp.MustCompile(`(?m)^func (With[A-Z]\w+)\(`).FindAllStringSubmatch(source, -1) {
					defined[m[1]] = true
				}
			}
		}
	}
	return defined
}
