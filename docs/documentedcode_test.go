package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// If CONTRIBUTING.md or docs/INTERNALS.md names code, the code exists. `name.go` must be a file,
// and `package.type` a type. `type.member` must be a method or a field. The test looks in the root
// package and below internal.
func TestDocumentsNameCodeThatExists(t *testing.T) {
	members := make(map[string]bool)
	for _, pattern := range []string{"*.go", "internal/*/*.go", "internal/*/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			addMembers(t, members, file)
		}
	}
	name := regexp.MustCompile("`([A-Za-z]\\w*)\\.([A-Za-z]\\w*)`")
	checked := 0
	for _, document := range []string{"CONTRIBUTING.md", "docs/INTERNALS.md"} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			owner, member := m[1], m[2]
			switch {
			case owner == "time" || owner == "context": // of the standard library
			case member == "go":
				if _, err := os.Stat(owner + ".go"); err != nil {
					t.Errorf("%s: %v", document, err)
				}
			case !members[owner+"."+member]:
				t.Errorf("%s names %s.%s, which does not exist", document, owner, member)
			}
			checked++
		}
	}
	if checked < 15 {
		t.Errorf("only %d names found", checked)
	}
}

// addMembers adds the types of a Go file, their methods and their fields to members.
func addMembers(t *testing.T, members map[string]bool, file string) {
	t.Helper()
	if strings.HasSuffix(file, "_test.go") {
		return
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				members[receiver(n.Recv.List[0].Type)+"."+n.Name.Name] = true
			}
		case *ast.TypeSpec:
			members[parsed.Name.Name+"."+n.Name.Name] = true
			if s, ok := n.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					for _, ident := range field.Names {
						members[n.Name.Name+"."+ident.Name] = true
					}
				}
			}
		}
		return true
	})
}

// receiver returns the name of the type of a receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
