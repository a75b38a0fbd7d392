package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// trimTests removes from the tests of one of the kubelet's packages what does not compile
// any more, because it reaches into what was replaced, and says what that is.
func (w *workspace) trimTests(ctx context.Context, flags []string, name string) error {
	folder := filepath.Join("pkg", "kubelet", name)
	released, err := filepath.Glob(filepath.Join(w.original, folder, "*_test.go"))
	if err != nil {
		return err
	}
	for _, path := range released {
		if _, err := w.restore(filepath.Join(folder, filepath.Base(path))); err != nil {
			return err
		}
	}
	args := append([]string{"test", "-c", "-gcflags=-e", "-o", os.DevNull}, flags...)
	var removed []string
	for range 20 { // what is removed was used by others, which are next
		cmd := w.command(ctx, append(args, kubernetes+"/"+filepath.ToSlash(folder))...)
		cmd.Stderr = nil
		said, err := cmd.CombinedOutput()
		if err == nil {
			fmt.Printf("left out of the tests of %s, as they reach into what was replaced: %s\n", folder,
				cmpOr(strings.Join(removed, ", "), "nothing"))
			return nil
		}
		lines := complaints(string(said))
		if len(lines) == 0 {
			return fmt.Errorf("compiling the tests of %s: %w:\n%s", folder, err, said)
		}
		for file, at := range lines {
			names, err := w.removeDeclarations(filepath.Join(folder, file), at)
			if err != nil {
				return err
			}
			removed = append(removed, names...)
		}
	}
	return errors.New("the tests of " + folder + " do not compile, whatever is left out")
}

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

var complaint = regexp.MustCompile(`([a-z0-9_]+_test\.go):(\d+):\d+: `)

// complaints returns the lines of the test files that do not compile.
func complaints(said string) map[string][]int {
	lines := make(map[string][]int)
	for s := bufio.NewScanner(strings.NewReader(said)); s.Scan(); {
		if m := complaint.FindStringSubmatch(s.Text()); m != nil {
			if n, err := strconv.Atoi(m[2]); err == nil {
				lines[m[1]] = append(lines[m[1]], n)
			}
		}
	}
	return lines
}

// removeDeclarations removes the declarations and imports that are on the lines of a file,
// and returns the names of the tests among them.
func (w *workspace) removeDeclarations(path string, lines []int) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(w.tree, path))
	if err != nil {
		return nil, fmt.Errorf("reading a test: %w", err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("parsing a test: %w", err)
	}
	var names []string
	edited := string(content)
	remove := func(n ast.Node) bool {
		from, to := files.Position(n.Pos()), files.Position(n.End())
		if !slices.ContainsFunc(lines, func(l int) bool { return from.Line <= l && l <= to.Line }) {
			return false
		}
		edited = edited[:from.Offset] + edited[to.Offset:]
		return true
	}
	for _, d := range slices.Backward(file.Decls) {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for _, spec := range slices.Backward(g.Specs) {
				remove(spec)
			}
			continue
		}
		if f, ok := d.(*ast.FuncDecl); remove(d) && ok && strings.HasPrefix(f.Name.Name, "Test") {
			names = append(names, f.Name.Name)
		}
	}
	slices.Reverse(names)
	return names, w.write(path, []byte(edited))
}
