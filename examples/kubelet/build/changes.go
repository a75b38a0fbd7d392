package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// changes are all that the tree differs in from the release. Each says what it did.
var changes = []func(*workspace) (string, error){
	replaceFile("pkg/kubelet/container/cache.go", "container/cache.go"),
	replaceFile("pkg/kubelet/pleg/generic.go", "pleg/generic.go"),
	replaceFile("pkg/kubelet/pleg/runtime.go", "pleg/runtime.go"),
	removeFile("pkg/kubelet/pleg/evented.go"),
	editFile("pkg/kubelet/kubelet.go", "NewMainKubelet", handRuntimeOver),
	editFile("pkg/kubelet/metrics/metrics.go", "Register", leaveMetricsOut),
}

// replaceFile puts a file of the adapter in the place of one of the kubelet's.
func replaceFile(path, with string) func(*workspace) (string, error) {
	return func(w *workspace) (string, error) {
		content, err := os.ReadFile(filepath.Join(w.adapter, with))
		if err != nil {
			return "", fmt.Errorf("reading the adapter: %w", err)
		}
		verb := "replaced"
		if _, err := os.Stat(filepath.Join(w.original, path)); err != nil {
			verb = "added"
		}
		return fmt.Sprintf("%s %s by examples/kubelet/adapter/%s, %d lines\n", verb, path, with,
			strings.Count(string(content), "\n")), w.write(path, content)
	}
}

func removeFile(path string) func(*workspace) (string, error) {
	return func(w *workspace) (string, error) {
		if err := os.RemoveAll(filepath.Join(w.tree, path)); err != nil {
			return "", fmt.Errorf("removing %s: %w", path, err)
		}
		return fmt.Sprintf("removed %s\n", path), nil
	}
}

// splice is text that takes the place of a part of a file.
type splice struct {
	from, to token.Pos
	text     string
	said     string
}

// editFile makes the splices that edit finds in the function of that name.
func editFile(path, function string, edit func(source func(ast.Node) string, body *ast.BlockStmt) ([]splice, error),
) func(*workspace) (string, error) {
	return func(w *workspace) (string, error) {
		content, err := w.restore(path)
		if err != nil {
			return "", err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
		if err != nil {
			return "", fmt.Errorf("parsing the released %s: %w", path, err)
		}
		body := bodyOf(file, function)
		if body == nil {
			return "", fmt.Errorf("editing %s: there is no function %s", path, function)
		}
		offset := func(p token.Pos) int { return files.Position(p).Offset }
		splices, err := edit(func(n ast.Node) string { return string(content[offset(n.Pos()):offset(n.End())]) }, body)
		if err != nil {
			return "", fmt.Errorf("editing %s in %s: %w", function, path, err)
		}
		var said strings.Builder
		edited := string(content)
		for _, s := range slices.Backward(splices) {
			edited = edited[:offset(s.from)] + s.text + edited[offset(s.to):]
		}
		for _, s := range splices {
			fmt.Fprintf(&said, "edited %s:%d: %s\n", path, files.Position(s.from).Line, s.said)
		}
		return said.String(), w.write(path, []byte(edited))
	}
}

func bodyOf(file *ast.File, function string) *ast.BlockStmt {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == function {
			return f.Body
		}
	}
	return nil
}

// handRuntimeOver wraps the runtime that is handed to the generator, so that the generator
// has the CRI client for the events, the endpoint for the exit events, and
// runtime-request-timeout.
func handRuntimeOver(source func(ast.Node) string, body *ast.BlockStmt) ([]splice, error) {
	var splices []splice
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !isSelector(call.Fun, "pleg", "NewGenericPLEG") || len(call.Args) != 6 {
			return true
		}
		argument := call.Args[1]
		text := fmt.Sprintf("pleg.NodeRuntime(%s, kubeDeps.RemoteRuntimeService, kubeCfg.ContainerRuntimeEndpoint, "+
			"kubeCfg.RuntimeRequestTimeout.Duration)", source(argument))
		splices = append(splices, splice{argument.Pos(), argument.End(), text, source(argument) + " is now " + text})
		return true
	})
	if len(splices) == 0 {
		return nil, fmt.Errorf("there is no call of pleg.NewGenericPLEG with 6 arguments")
	}
	return splices, nil
}

// ours are the metrics that the library registers in the kubelet's registry, under the
// kubelet's names.
var ours = []string{
	"PLEGRelistDuration", "PLEGRelistInterval", "PLEGPodRelistDuration", "PLEGDiscardEvents", "PLEGLastSeen",
	"EventedPLEGConn", "EventedPLEGConnErr", "EventedPLEGConnLatency", "RunningPodCount", "RunningContainerCount",
}

// leaveMetricsOut removes the registrations of the metrics that the library registers.
func leaveMetricsOut(source func(ast.Node) string, body *ast.BlockStmt) ([]splice, error) {
	var splices []splice
	var found []string
	ast.Inspect(body, func(n ast.Node) bool {
		statement, ok := n.(*ast.ExprStmt)
		if !ok {
			return true
		}
		call, ok := statement.X.(*ast.CallExpr)
		if !ok || !isSelector(call.Fun, "legacyregistry", "MustRegister") || len(call.Args) != 1 {
			return true
		}
		if name := source(call.Args[0]); slices.Contains(ours, name) {
			found = append(found, name)
			splices = append(splices, splice{statement.Pos(), statement.End(), "", name + " is the library's to register"})
		}
		return true
	})
	if len(found) != len(ours) {
		return nil, fmt.Errorf("of the metrics %v only %v are registered", ours, found)
	}
	return splices, nil
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}
