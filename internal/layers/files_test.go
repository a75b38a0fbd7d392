package layers

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// module makes a file system of files and their text.
func module(files map[string]string) fstest.MapFS {
	fsys := make(fstest.MapFS)
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

func TestFiles(t *testing.T) {
	twoLayers := map[string]int{"low.go": 1, "high.go": 2}
	oneLayer := map[string]int{"a.go": 1, "b.go": 1}
	for _, test := range []struct {
		name     string
		sources  map[string]string
		files    Files
		problems []string
	}{
		{
			name: "uses run down",
			sources: map[string]string{
				"low.go":  "package p\ntype T struct{ F int }\nfunc (T) M() {}\nfunc f() T { return T{} }\n",
				"high.go": "package p\nfunc g() int { f().M(); return f().F }\n",
			},
			files: Files{Layer: twoLayers},
		},
		{
			name: "a function of a higher layer",
			sources: map[string]string{
				"low.go":  "package p\n\nfunc f() { g() }\n",
				"high.go": "package p\n\nfunc g() {}\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses g (line 3) of high.go (layer 2)"},
		},
		{
			name: "a type, a field and a method of a higher layer, each named once",
			sources: map[string]string{
				"low.go":  "package p\nfunc f(t T) int {\n\tt.M()\n\tt.M()\n\treturn t.F\n}\n",
				"high.go": "package p\ntype T struct{ F int }\nfunc (T) M() {}\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses T (line 2), T.M (line 3), T.F (line 5) of high.go (layer 2)"},
		},
		{
			name: "many objects",
			sources: map[string]string{
				"low.go":  "package p\nvar x = a + b + c + d + e\n",
				"high.go": "package p\nconst a, b, c, d, e = 1, 2, 3, 4, 5\n",
			},
			files: Files{Layer: twoLayers},
			problems: []string{
				"low.go (layer 1) uses a (line 2), b (line 2), c (line 2) and 2 more of high.go (layer 2)",
			},
		},
		{
			name: "a method of a type of its own layer that is declared higher",
			sources: map[string]string{
				"low.go":  "package p\ntype T struct{}\nfunc f(t T) { t.M() }\n",
				"high.go": "package p\nfunc (T) M() {}\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses T.M (line 3) of high.go (layer 2)"},
		},
		{
			name: "a method of an interface of a higher layer",
			sources: map[string]string{
				"low.go":  "package p\nfunc f(r interface{ I }) { r.M() }\n",
				"high.go": "package p\ntype I interface{ M() }\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses I (line 2), I.M (line 2) of high.go (layer 2)"},
		},
		{
			name: "an embedded field of a higher layer that is not named",
			sources: map[string]string{
				"low.go": "package p\ntype inner struct{ f int }\nfunc f() int { return g().f }\n",
				"high.go": "package p\ntype outer struct{ middle }\ntype middle struct{ *inner }\n" +
					"func g() outer { return outer{} }\n",
			},
			files: Files{Layer: twoLayers},
			problems: []string{
				"low.go (layer 1) uses g (line 3), middle.inner (line 3), outer.middle (line 3) of high.go (layer 2)",
			},
		},
		{
			name: "a field of an instance of a generic type",
			sources: map[string]string{
				"low.go":  "package p\nfunc f() int { return g.F.F }\n",
				"high.go": "package p\ntype T[E any] struct{ F E }\nvar g T[T[int]]\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses T.F (line 2), g (line 2) of high.go (layer 2)"},
		},
		{
			name: "imports that do not exist, and what is passed to them",
			sources: map[string]string{
				"low.go": `package p
import "example.com/other"
type t struct { mu other.Mutex; f int }
func f(x *t) {
	x.mu.Lock()
	other.Call(other.T[int]{F: x.f}, func() { g(x) })
}
`,
				"high.go": "package p\nfunc g(*t) {}\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses g (line 6) of high.go (layer 2)"},
		},
		{
			name: "tests are not looked at",
			sources: map[string]string{
				"low.go":      "package p\nfunc f() {}\n",
				"high.go":     "package p\nfunc g() {}\n",
				"low_test.go": "package p\nfunc h() { g() }\n",
				"x_test.go":   "package p_test\nsyntax error",
			},
			files: Files{Layer: twoLayers},
		},
		{
			name: "a local variable with the name of an object",
			sources: map[string]string{
				"low.go":  "package p\nfunc f(g int) int { return g }\n",
				"high.go": "package p\nfunc g() {}\n",
			},
			files: Files{Layer: twoLayers},
		},
		{
			name: "one layer, one direction",
			sources: map[string]string{
				"a.go": "package p\nfunc a() { b() }\n",
				"b.go": "package p\nfunc b() {}\n",
			},
			files: Files{Layer: oneLayer},
		},
		{
			name: "one layer, both directions",
			sources: map[string]string{
				"a.go": "package p\nfunc a() { b() }\n",
				"b.go": "package p\nfunc b() { a() }\n",
			},
			files:    Files{Layer: oneLayer},
			problems: []string{"a cycle in layer 1: a.go uses b (line 2) of b.go, which uses a (line 2) of a.go"},
		},
		{
			name: "a cycle of three, beside a file that is in none, and another cycle",
			sources: map[string]string{
				"0.go": "package p\nfunc zero() { a() }\n",
				"a.go": "package p\nfunc a() { b() }\n",
				"b.go": "package p\nfunc b() { c() }\n",
				"c.go": "package p\nfunc c() { a(); d() }\n",
				"d.go": "package p\nfunc d() { c() }\n",
			},
			files: Files{Layer: map[string]int{"0.go": 2, "a.go": 2, "b.go": 2, "c.go": 2, "d.go": 2}},
			problems: []string{
				"a cycle in layer 2: a.go uses b (line 2) of b.go, which uses c (line 2) of c.go, which uses a (line 2) of a.go",
				"a cycle in layer 2: d.go uses c (line 2) of c.go, which uses d (line 2) of d.go",
			},
		},
		{
			name: "a cycle over two layers is a climb",
			sources: map[string]string{
				"low.go":  "package p\nfunc f() { g() }\n",
				"high.go": "package p\nfunc g() { f() }\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go (layer 1) uses g (line 2) of high.go (layer 2)"},
		},
		{
			name: "methods of one type over two files",
			sources: map[string]string{
				"a.go": "package p\ntype T struct{ f int }\nfunc (t *T) a() { t.b() }\n",
				"b.go": "package p\nfunc (t *T) b() { t.f++ }\n",
			},
			files: Files{Layer: oneLayer},
			problems: []string{
				"a cycle in layer 1: a.go uses T.b (line 3) of b.go, which uses T (line 2), T.f (line 2) of a.go",
			},
		},
		{
			name: "methods of one spread type over two files",
			sources: map[string]string{
				"a.go": "package p\ntype T struct{ f int }\nfunc (t *T) a() { t.b() }\n",
				"b.go": "package p\nfunc (t *T) b() { t.f++ }\n",
			},
			files: Files{Layer: oneLayer, Spread: []string{"T"}},
		},
		{
			name: "files of a spread type that use something else of one another",
			sources: map[string]string{
				"a.go": "package p\ntype T struct{}\nfunc (t *T) a() { b() }\n",
				"b.go": "package p\nfunc (t *T) b() { a() }\nfunc b() {}\n",
				"c.go": "package p\nfunc a() { var t T; t.a() }\n",
			},
			files: Files{Layer: map[string]int{"a.go": 1, "b.go": 1, "c.go": 1}, Spread: []string{"T"}},
		},
		{
			name: "a spread type of a higher layer",
			sources: map[string]string{
				"low.go":  "package p\nfunc f(t *T) { t.M() }\n",
				"high.go": "package p\ntype T struct{}\nfunc (*T) M() {}\n",
			},
			files:    Files{Layer: twoLayers, Spread: []string{"T"}},
			problems: []string{"low.go (layer 1) uses T (line 2), T.M (line 2) of high.go (layer 2)"},
		},
		{
			name: "a file that the table lacks, and one that it has too many",
			sources: map[string]string{
				"low.go": "package p\n",
				"new.go": "package p\n",
			},
			files:    Files{Layer: twoLayers},
			problems: []string{"new.go is in no layer: add it to the table", "the table has high.go, which does not exist"},
		},
		{
			name:     "a syntax error",
			sources:  map[string]string{"low.go": "package p\nfunc {\n"},
			files:    Files{Layer: twoLayers},
			problems: []string{"low.go:2:6: expected 'IDENT', found '{'"},
		},
		{
			name:     "no files",
			sources:  map[string]string{"README.md": ""},
			files:    Files{Layer: twoLayers},
			problems: []string{". has no Go files"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.problems, test.files.Problems(module(test.sources))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
