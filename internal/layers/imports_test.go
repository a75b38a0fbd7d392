package layers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestImports(t *testing.T) {
	rules := Imports{
		Module:    "example.com/m",
		Packages:  map[string][]string{"internal/a": {"internal/b"}, "internal/b": nil},
		Forbidden: []string{"example.com/clock"},
	}
	for _, test := range []struct {
		name     string
		files    map[string]string
		problems []string
	}{
		{
			name: "what is allowed",
			files: map[string]string{
				"internal/a/a.go":         `package a; import ("time"; "example.com/clocks"; "example.com/m/internal/b")`,
				"internal/a/below/b.go":   `package below; import ("example.com/m/internal/a"; "example.com/m2")`,
				"internal/b/b.go":         `package b; import "example.com/other"`,
				"internal/b/b_test.go":    `package b_test; import ("example.com/m"; "example.com/clock")`,
				"internal/c/not_named.go": `package c; import "example.com/m"`,
			},
		},
		{
			name: "the root, another package, and the wrong way",
			files: map[string]string{
				"internal/a/a.go": `package a; import ("example.com/m"; "example.com/m/internal/c")`,
				"internal/b/b.go": `package b; import "example.com/m/internal/a"`,
			},
			problems: []string{
				"internal/a/a.go must not import example.com/m",
				"internal/a/a.go must not import example.com/m/internal/c",
				"internal/b/b.go must not import example.com/m/internal/a",
			},
		},
		{
			name: "a forbidden package of another module, under any name, and one below it",
			files: map[string]string{
				"internal/a/a.go": `package a; import c "example.com/clock"`,
				"internal/b/b.go": `package b; import _ "example.com/clock/testing"`,
			},
			problems: []string{
				"internal/a/a.go must not import example.com/clock",
				"internal/b/b.go must not import example.com/clock/testing",
			},
		},
		{
			name: "a folder below a package",
			files: map[string]string{
				"internal/a/a.go":         `package a`,
				"internal/b/b.go":         `package b`,
				"internal/b/below/doc.md": ``,
				"internal/b/below/x/x.go": `package x; import "example.com/m"`,
			},
			problems: []string{"internal/b/below/x/x.go must not import example.com/m"},
		},
		{
			name:     "a package that does not exist, and one without files",
			files:    map[string]string{"internal/b/doc.md": ""},
			problems: []string{"open internal/a: file does not exist", "internal/b has no Go files"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.problems, rules.Problems(module(test.files))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
