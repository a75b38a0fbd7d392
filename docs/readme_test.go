package docs_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegz"
)

// Every block of Go in the documents below is part of a compiled file: an example, a recipe, or a
// program. Only the indentation may differ.
func TestSnippetsAreOfExamples(t *testing.T) {
	examples, err := filepath.Glob("example*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	recipes, err := filepath.Glob("nodeagent/recipes/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	compiled := ""
	for _, file := range append(append(examples, recipes...), "examples/deaths/main.go", "examples/adopting/parca.go",
		"attribution/example_test.go", "ends/example_test.go") {
		compiled += "\n" + unindented(readFile(t, file))
	}
	block := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	for document, atLeast := range map[string]int{
		"README.md": 1, "docs/REFERENCE.md": 1, "docs/ADOPTING.md": 1, "docs/GUIDE.md": 7,
	} {
		blocks := block.FindAllStringSubmatch(readFile(t, document), -1)
		if len(blocks) < atLeast {
			t.Errorf("%s has %d blocks of Go", document, len(blocks))
		}
		for _, m := range blocks {
			if !strings.Contains(compiled, "\n"+unindented(m[1])) {
				t.Errorf("%s: this is in no example:\n%s", document, m[1])
			}
		}
	}
}

// The README names one command that runs the program and one command that runs the tests. The gate
// .ci/run runs the same two commands, in the environment of a user.
func TestTheGateRunsTheCommandsOfTheReadme(t *testing.T) {
	commands := func(document, pattern string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(readFile(t, document), -1) {
			all = append(all, m[1])
		}
		return all
	}
	readme := commands("README.md", "(?m)(?:^|`)(go (?:run|test) [^`\n]*)")
	gate := commands(".ci/run", `asUser (go [^)\n]*)`)
	if len(readme) != 2 || !slices.Equal(readme, gate) {
		t.Errorf("README has %q, and .ci/run %q", readme, gate)
	}
}

// unindented returns a text without white space at the beginning and end of its lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// defaults maps constants to their values. The documentation of options names these constants as
// defaults.
var defaults = map[string]any{
	"pleg.DefaultRelistPeriod":          pleg.DefaultRelistPeriod,
	"pleg.DefaultRelistThreshold":       pleg.DefaultRelistThreshold,
	"pleg.DefaultChannelCapacity":       pleg.DefaultChannelCapacity,
	"pleg.DefaultInspectionWorkers":     pleg.DefaultInspectionWorkers,
	"pleg.DefaultRuntimeRequestTimeout": pleg.DefaultRuntimeRequestTimeout,
	"cri.DefaultExitsDir":               cri.DefaultExitsDir,
	"plegz.DefaultHistory":              plegz.DefaultHistory,
}

// docs/REFERENCE.md lists every option of the three packages with its type and its default. If the
// option's documentation names a constant, the default is the constant's value. If the option takes
// no argument, the default is "off". Otherwise, a text describes the default.
func TestEveryOptionIsInTheTable(t *testing.T) {
	rows := make(map[string][]string)
	row := regexp.MustCompile("(?m)^\\| `((?:pleg|cri|plegz)\\.With\\w+)` \\|(.*)\\|$")
	for _, m := range row.FindAllStringSubmatch(readFile(t, "docs/REFERENCE.md"), -1) {
		rows[m[1]] = strings.Split(m[2], " | ")
	}
	seen, constant := 0, regexp.MustCompile(`\bDefault\w+`)
	for name, dir := range map[string]string{"pleg": ".", "cri": "cri", "plegz": "plegz"} {
		for _, f := range optionsOf(t, dir) {
			seen++
			option := name + "." + f.Name.Name
			cells := rows[option]
			if len(cells) != 3 {
				t.Errorf("%s is not in docs/REFERENCE.md with a type, a default and a meaning: %q", option, cells)
				continue
			}
			typ, byDefault := strings.Trim(cells[0], " `"), cells[1]
			if want := parameters(t, f); typ != want {
				t.Errorf("%s: the type is %q in the table, and %q", option, typ, want)
			}
			if named := constant.FindString(f.Doc.Text()); named != "" {
				value, known := defaults[name+"."+named]
				if want := fmt.Sprint(value); !known || !strings.Contains(byDefault, "`"+want+"`") {
					t.Errorf("%s: the default is %q in the table, and %s (%s)", option, byDefault, want, named)
				}
			} else if (byDefault == "off") != (typ == "–") || byDefault == "" {
				t.Errorf("%s: the type is %q and the default %q", option, typ, byDefault)
			}
		}
	}
	if seen != len(rows) || seen < 20 {
		t.Errorf("%d options, %d rows", seen, len(rows))
	}
}

// optionsOf returns the functions of a package that return an option.
func optionsOf(t *testing.T, dir string) (options []*ast.FuncDecl) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is || f.Recv != nil || !f.Name.IsExported() || f.Type.Results == nil {
				continue
			}
			if result, is := f.Type.Results.List[0].Type.(*ast.Ident); is &&
				(result.Name == "Option" || result.Name == "SubscribeOption") {
				options = append(options, f)
			}
		}
	}
	return options
}

// parameters returns the types of a function's parameters, or "–" if there are no parameters.
func parameters(t *testing.T, f *ast.FuncDecl) string {
	t.Helper()
	var types []string
	for _, p := range f.Type.Params.List {
		var b bytes.Buffer
		if err := printer.Fprint(&b, token.NewFileSet(), p.Type); err != nil {
			t.Fatal(err)
		}
		types = append(types, b.String())
	}
	if types == nil {
		return "–"
	}
	return strings.Join(types, ", ")
}
