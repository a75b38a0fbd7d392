package main

import (
	"path"
	"testing"
)

func TestVersionOf(t *testing.T) {
	for name, want := range map[string]string{
		"1.33": "v1.33.13", "1.36.3": "v1.36.3", "v1.38.0-alpha.0": "v1.38.0-alpha.0",
		"1.3": "", "1.99": "", "main": "",
	} {
		if got, err := versionOf(name); got != want || (err == nil) == (want == "") {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}

// TestAdapterFiles shows, for several releases, from which folder each file of the adapter is
// taken.
func TestAdapterFiles(t *testing.T) {
	root, err := findRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for r, want := range map[release]map[string]string{
		38: {"reads.go": "", "lists.go": "", "requests.go": "", "pods.go": "", "interface.go": "", "generic.go": ""},
		37: {"reads.go": "_before1.38", "lists.go": "", "requests.go": "", "pods.go": "", "interface.go": ""},
		36: {"reads.go": "_before1.38", "lists.go": "", "requests.go": "_before1.37", "interface.go": "_before1.37"},
		33: {"lists.go": "", "requests.go": "_before1.36", "pods.go": "_before1.36", "interface.go": "_before1.37"},
		32: {"lists.go": "_before1.33", "requests.go": "_before1.36", "pods.go": "_before1.36", "generic.go": ""},
	} {
		w := &workspace{root: root, release: r}
		for name, below := range want {
			folder := "pleg"
			if name == "lists.go" || name == "reads.go" {
				folder = "container"
			}
			files, err := w.adapterFiles(folder)
			if err != nil || files[name] != path.Join(below, folder, name) || files["standin.go"] != "" {
				t.Errorf("in %s %s is %q, %v", r, name, files[name], err)
			}
		}
	}
}
