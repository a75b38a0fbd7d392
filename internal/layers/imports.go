package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Imports says what packages of a module may import.
type Imports struct {
	// Module is the path of the module.
	Module string
	// Packages has folders of the module, each with what it and the folders below
	// it may import of the module beside one another. Other packages of the module
	// are forbidden to them, its root among them.
	Packages map[string][]string
	// Forbidden are packages of other modules, with all packages below them.
	Forbidden []string
}

// Problems returns the imports that break the rules in the module in fsys, a
// sentence each, in an order that does not change. Tests may import anything.
func (r Imports) Problems(fsys fs.FS) []string {
	var problems []string
	for _, folder := range slices.Sorted(maps.Keys(r.Packages)) {
		walk := func(dir string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if dir != folder && (entry.Name() == "testdata" || !hasGoFiles(fsys, dir)) {
				return nil
			}
			found, err := r.folderProblems(fsys, folder, dir)
			problems = append(problems, found...)
			return err
		}
		if err := fs.WalkDir(fsys, folder, walk); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// folderProblems checks the files in dir, which is folder or lies below it.
func (r Imports) folderProblems(fsys fs.FS, folder, dir string) ([]string, error) {
	fset := token.NewFileSet()
	sources, err := parse(fset, fsys, dir, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, source := range sources {
		for _, spec := range source.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err == nil && !r.allowed(folder, imported) {
				problems = append(problems, fmt.Sprintf("%s must not import %s", fset.File(source.FileStart).Name(), imported))
			}
		}
	}
	return problems, nil
}

// allowed reports whether a package in folder, or below it, may import another.
func (r Imports) allowed(folder, imported string) bool {
	if !isBelow(imported, r.Module) {
		return !slices.ContainsFunc(r.Forbidden, func(forbidden string) bool { return isBelow(imported, forbidden) })
	}
	return slices.ContainsFunc(append([]string{folder}, r.Packages[folder]...), func(other string) bool {
		return isBelow(imported, path.Join(r.Module, other))
	})
}

// isBelow reports whether a package is another or lies below it.
func isBelow(pkg, other string) bool { return pkg == other || strings.HasPrefix(pkg, other+"/") }

func hasGoFiles(fsys fs.FS, dir string) bool {
	files, err := fs.Glob(fsys, path.Join(dir, "*.go"))
	return err == nil && slices.ContainsFunc(files, func(file string) bool { return !strings.HasSuffix(file, "_test.go") })
}
