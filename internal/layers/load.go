package layers

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// loaded is a package: its files in order, and what each file uses of each other
// one.
type loaded struct {
	files []string
	uses  map[filePair][]use
}

type filePair struct{ user, used string }

func comparePairs(a, b filePair) int {
	return cmp.Or(cmp.Compare(a.user, b.user), cmp.Compare(a.used, b.used))
}

// use is one object that a file uses of another file, once however often.
type use struct {
	name  string // with its type's, if it is a field or a method
	owner string // the type that a field or a method belongs to, or the type itself
	line  int    // the line of the first use
}

// load parses and type-checks the package in the root of fsys, without its tests.
// Imports are empty packages and errors of type are ignored, so it takes no
// compiler and a few hundredths of a second. What that costs: of a value whose type
// only an imported package knows, such as what a sync.Pool holds, neither fields and
// methods are seen nor the type that it is asserted to be. Compared with the
// compiler's types, that lost none of 708 uses between the files of package pleg
// before its core was rewritten, and one of 453 after, of a file that was used
// otherwise too.
func load(fsys fs.FS) (*loaded, error) {
	fset := token.NewFileSet()
	sources, err := parse(fset, fsys, ".", parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	info := &types.Info{
		Uses:       make(map[*ast.Ident]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
	}
	config := types.Config{Importer: emptyPackages{}, Error: func(error) {}}
	// The error is the first of those that are ignored.
	pkg, _ := config.Check("checked", fset, sources, info)

	found := &loaded{uses: make(map[filePair][]use)}
	for _, source := range sources {
		found.files = append(found.files, fset.File(source.FileStart).Name())
	}
	owners := ownersOf(pkg)
	add := func(at token.Pos, object types.Object) {
		if object.Pkg() != pkg {
			return
		}
		user, used := fset.Position(at), fset.Position(object.Pos())
		if user.Filename == used.Filename {
			return
		}
		pair := filePair{user.Filename, used.Filename}
		found.uses[pair] = append(found.uses[pair], newUse(object, owners[object.Pos()], user.Line))
	}
	for id, object := range info.Uses {
		add(id.Pos(), object)
	}
	for selector, selection := range info.Selections {
		for _, embedded := range embeddedFields(selection) {
			add(selector.Pos(), embedded)
		}
	}
	for pair, uses := range found.uses {
		slices.SortFunc(uses, func(a, b use) int {
			return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.line, b.line))
		})
		uses = slices.CompactFunc(uses, func(a, b use) bool { return a.name == b.name })
		slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(a.line, b.line) })
		found.uses[pair] = uses
	}
	return found, nil
}

// parse parses the files of a folder but its tests.
func parse(fset *token.FileSet, fsys fs.FS, dir string, mode parser.Mode) ([]*ast.File, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, err
	}
	var sources []*ast.File
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(fsys, path.Join(dir, name))
		if err != nil {
			return nil, err
		}
		source, err := parser.ParseFile(fset, path.Join(dir, name), text, mode)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s has no Go files", dir)
	}
	return sources, nil
}

// ownersOf returns the named type that each field and method of the package
// belongs to, by where the field or method is declared: an instance of a generic
// type has objects of its own at the same places.
func ownersOf(pkg *types.Package) map[token.Pos]string {
	owners := make(map[token.Pos]string)
	for _, name := range pkg.Scope().Names() {
		typeName, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		owners[typeName.Pos()] = name
		if typeName.IsAlias() {
			continue
		}
		named, ok := typeName.Type().(*types.Named)
		if !ok {
			continue
		}
		for method := range named.Methods() {
			owners[method.Pos()] = name
		}
		switch underlying := named.Underlying().(type) {
		case *types.Struct:
			for field := range underlying.Fields() {
				owners[field.Pos()] = name
			}
		case *types.Interface:
			for method := range underlying.ExplicitMethods() {
				owners[method.Pos()] = name
			}
		}
	}
	return owners
}

func newUse(object types.Object, owner string, line int) use {
	name := object.Name()
	if owner != "" && owner != name {
		name = owner + "." + name
	}
	return use{name, owner, line}
}

// embeddedFields returns the fields that a selection goes through without naming
// them.
func embeddedFields(selection *types.Selection) []*types.Var {
	var fields []*types.Var
	at := selection.Recv()
	for _, i := range selection.Index()[:len(selection.Index())-1] {
		if pointer, ok := at.Underlying().(*types.Pointer); ok {
			at = pointer.Elem()
		}
		structure, ok := at.Underlying().(*types.Struct)
		if !ok {
			return fields
		}
		field := structure.Field(i)
		fields = append(fields, field)
		at = field.Type()
	}
	return fields
}

// emptyPackages imports every package as an empty one.
type emptyPackages struct{}

func (emptyPackages) Import(importPath string) (*types.Package, error) {
	pkg := types.NewPackage(importPath, path.Base(importPath))
	pkg.MarkComplete()
	return pkg, nil
}
