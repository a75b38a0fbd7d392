package pleg_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// filesInOrder are the files of this package. Each file uses only declarations of files further
// down.
var filesInOrder = []string{
	"generic.go", "loop.go", "reconciler.go", "lists.go", "inspections.go", "collectors.go", "subscribe.go", "health.go",
	"requests.go", "updates.go", "podrecords.go", "eventstream.go", "exits.go", "step.go", "cachewriter.go", "cache.go",
	"metrics.go", "cacheindex.go", "validate.go", "diff.go", "record.go", "pleg.go", "runtime.go",
}

func TestFilesAreInOrder(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}",
		".").Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, export, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[path] = export
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range filesInOrder {
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", open)}
	pkg, err := config.Check("pleg", fset, files, info)
	if err != nil {
		t.Fatal(err) // for example, if a file is missing from the list
	}
	place := func(p token.Pos) int { return slices.Index(filesInOrder, fset.Position(p).Filename) }
	for id, used := range info.Uses {
		typeName, isType := used.(*types.TypeName)
		// A method may be in another file than its receiver's type.
		isReceiver := isType && (typeName.Name() == "reconciler" || typeName.Name() == "GenericPLEG")
		if used.Pkg() == pkg && !isReceiver && place(used.Pos()) < place(id.Pos()) && !isField(used) {
			t.Errorf("%s uses %s of %s", fset.Position(id.Pos()), used.Name(), fset.Position(used.Pos()).Filename)
		}
	}
}

func isField(o types.Object) bool {
	v, is := o.(*types.Var)
	return is && v.IsField()
}
