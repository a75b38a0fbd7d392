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

// trimTests removes declarations that do not compile from the tests of a kubelet package. These
// declarations use internals that the adapter has replaced. trimTests prints what it removes.
func (w *workspace) trimTests(ctx context.Context, flags []string, name string) error {
	folder := filepath.Join("pkg", "kubelet", name)
	args := append([]string{"test", "-c", "-gcflags=-e", "-o", os.DevNull}, flags...)
	var removed []string
	for range 20 { // a removal may break other declarations, so repeat
		cmd := command(ctx, w.tree, append(args, "./"+filepath.ToSlash(folder))...)
		cmd.Stderr = nil
		said, err := cmd.CombinedOutput()
		if err == nil {
			for _, test := range removed {
				fmt.Printf("left out of the tests of %s, as it reaches into what was replaced: %s\n", folder, test)
			}
			return nil
		}
		lines := complaints(string(said))
		if len(lines) == 0 {
			return fmt.Errorf("compiling the tests of %s: %w:\n%s", folder, err, said)
		}
		for file, at := range lines {
			tests, err := w.removeDeclarations(filepath.Join(folder, file), at)
			if err != nil {
				return err
			}
			removed = append(removed, tests...)
		}
	}
	return errors.New("the tests of " + folder + " do not compile, whatever is left out")
}

var complaint = regexp.MustCompile(`([a-z0-9_]+_test\.go):(\d+):\d+: (.*)`)

// complaints returns the compiler's errors in test files, by file and line.
func complaints(said string) map[string]map[int]string {
	lines := make(map[string]map[int]string)
	for s := bufio.NewScanner(strings.NewReader(said)); s.Scan(); {
		m := complaint.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		if lines[m[1]] == nil {
			lines[m[1]] = make(map[int]string)
		}
		if n, err := strconv.Atoi(m[2]); err == nil {
			lines[m[1]][n] = m[3]
		}
	}
	return lines
}

// removeDeclarations removes the declarations and imports at the given lines of a file. It returns
// the removed tests, each with the first error in it.
func (w *workspace) removeDeclarations(path string, lines map[int]string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(w.tree, path))
	if err != nil {
		return nil, fmt.Errorf("reading a test: %w", err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("parsing a test: %w", err)
	}
	var tests []string
	edited := string(content)
	remove := func(n ast.Node) (reason string, removed bool) {
		from, to := files.Position(n.Pos()), files.Position(n.End())
		for l := from.Line; l <= to.Line; l++ {
			if reason, removed = lines[l]; removed {
				edited = edited[:from.Offset] + edited[to.Offset:]
				break
			}
		}
		return reason, removed
	}
	for _, d := range slices.Backward(file.Decls) {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for _, spec := range slices.Backward(g.Specs) {
				remove(spec)
			}
			continue
		}
		reason, removed := remove(d)
		if f, ok := d.(*ast.FuncDecl); removed && ok && strings.HasPrefix(f.Name.Name, "Test") {
			tests = append(tests, f.Name.Name+": "+reason)
		}
	}
	slices.Reverse(tests)
	return tests, w.write(path, []byte(edited))
}
