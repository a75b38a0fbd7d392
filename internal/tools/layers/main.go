// Command layers counts the references between the parts of a repository, and how many of them
// violate the layers. A part is a folder, or a file in the root folder. The tests of a folder are a
// separate part, and so are the tests in the root folder. A reference from part A to part B
// violates the layers if B also uses A, directly or indirectly.
//
//	go run ./layers [REPOSITORY]
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/types"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// arrow is the direction of references from one part to another.
type arrow struct{ from, to string }

func main() {
	log.SetFlags(0)
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	root, err := filepath.Abs(root)
	if err != nil {
		log.Fatal(err)
	}
	references, err := load(root)
	if err != nil {
		log.Fatal(err)
	}
	uses := make(map[string][]string)
	total := 0
	for a, n := range references {
		uses[a.from] = append(uses[a.from], a.to)
		total += n
	}
	var against []arrow
	counted := 0
	for a, n := range references {
		if reaches(uses, a.to, a.from) {
			against = append(against, a)
			counted += n
		}
	}
	fmt.Printf("%d parts, %d arrows between them, %d references\n", len(uses), len(references), total)
	fmt.Printf("against the layers: %d arrows, %d references\n", len(against), counted)
	slices.SortFunc(against, func(a, b arrow) int {
		return cmp.Or(cmp.Compare(references[b], references[a]), cmp.Compare(a.from+a.to, b.from+b.to))
	})
	for _, a := range against[:min(len(against), 10)] {
		fmt.Printf("%6d  %s -> %s\n", references[a], a.from, a.to)
	}
	if len(against) > 0 {
		os.Exit(1)
	}
}

// load counts the references between the parts of every module of a repository.
func load(root string) (map[arrow]int, error) {
	modules, err := exec.Command("git", "-C", root, "ls-files", "go.mod", "*/go.mod").Output()
	if err != nil {
		return nil, err
	}
	references, seen := make(map[arrow]int), make(map[string]bool)
	for module := range bytes.Lines(modules) {
		if bytes.HasPrefix(module, []byte("internal/tools/")) {
			continue // this module pins the tools of other projects
		}
		all, err := packages.Load(&packages.Config{
			Mode: packages.NeedName | packages.NeedFiles | packages.NeedTypes | packages.NeedTypesInfo |
				packages.NeedSyntax | packages.NeedImports | packages.NeedModule,
			Dir: filepath.Join(root, filepath.Dir(strings.TrimSpace(string(module)))), Tests: true,
			Env: append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS="), // -trimpath would hide folders
		}, "./...")
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			for _, err := range p.Errors {
				return nil, err
			}
			count(root, p, seen, references)
		}
	}
	return references, nil
}

// count adds the references in the files of a package. packages.Load returns a file twice if its
// package has tests; count counts each file once.
func count(root string, p *packages.Package, seen map[string]bool, references map[arrow]int) {
	positions := make(map[string]bool)
	receivers := make(map[*ast.Ident]bool) // a receiver is not a reference to the file of its type
	for _, file := range p.Syntax {
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
				ast.Inspect(f.Recv, func(n ast.Node) bool {
					if ident, is := n.(*ast.Ident); is {
						receivers[ident] = true
					}
					return true
				})
			}
		}
	}
	for ident, object := range p.TypesInfo.Uses {
		at := p.Fset.Position(ident.Pos())
		if seen[at.Filename] {
			continue
		}
		positions[at.Filename] = true
		if object.Pkg() == nil || isMember(object) || receivers[ident] {
			continue
		}
		from, to := part(root, at.Filename), part(root, p.Fset.Position(object.Pos()).Filename)
		if from != "" && to != "" && from != to {
			references[arrow{from, to}]++
		}
	}
	maps.Copy(seen, positions)
}

// isMember reports whether an object is a field, a method, or another object inside a declaration.
func isMember(object types.Object) bool {
	switch o := object.(type) {
	case *types.Var:
		return o.IsField()
	case *types.Func:
		return o.Signature().Recv() != nil
	default:
		return object.Parent() != object.Pkg().Scope()
	}
}

// part returns the part to which a file belongs; "" if the file is not in the repository.
func part(root, file string) string {
	path, err := filepath.Rel(root, file)
	if err != nil || strings.HasPrefix(path, "..") {
		return ""
	}
	folder := filepath.Dir(path)
	switch isTest := strings.HasSuffix(path, "_test.go"); {
	case folder == "." && isTest:
		return "tests at the root"
	case folder == ".":
		return path
	case isTest:
		return folder + " (tests)"
	}
	return folder
}

// reaches reports whether a part uses another part, directly or indirectly.
func reaches(uses map[string][]string, from, to string) bool {
	seen, open := map[string]bool{}, []string{from}
	for len(open) > 0 {
		next := open[len(open)-1]
		open = open[:len(open)-1]
		if next == to {
			return true
		}
		if !seen[next] {
			seen[next] = true
			open = append(open, uses[next]...)
		}
	}
	return false
}
