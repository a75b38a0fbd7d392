package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// adapter is the adapter's folder. releaseOfAdapter is the oldest release for which the adapter
// needs no files from a folder _before1.N.
const (
	adapter          = "kubelet/adapter"
	releaseOfAdapter = release(38)
)

// change is an edit of the tree. It returns a description of the edit.
type change = func(*workspace) (string, error)

// changes returns all edits of the tree.
func changes(w *workspace) ([]change, error) {
	changes := []change{
		removeFile("pkg/kubelet/pleg/evented.go"),
		editFile("pkg/kubelet/kubelet.go", "NewMainKubelet", handRuntimeOver),
		editFile("pkg/kubelet/kubelet_pods.go", "generateAPIPodStatus", publishConfirmed),
		editFile("pkg/kubelet/metrics/metrics.go", "Register", leaveMetricsOut),
	}
	for _, folder := range []string{"container", "pleg"} {
		if err := w.restoreFolder("pkg/kubelet/" + folder); err != nil {
			return nil, err
		}
		files, err := w.adapterFiles(folder)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			changes = append(changes, replaceFile("pkg/kubelet/"+folder+"/"+name, files[name]))
		}
	}
	return changes, nil
}

// adapterFiles returns the adapter's files for a folder of the kubelet. The keys are the file names
// in the kubelet's folder. For an older release, a file in a folder _before1.N replaces the newer
// file with the same name.
func (w *workspace) adapterFiles(folder string) (map[string]string, error) {
	files := make(map[string]string)
	add := func(below string) error {
		found, err := filepath.Glob(filepath.Join(w.root, adapter, below, folder, "*.go"))
		for _, path := range found {
			name := filepath.Base(path)
			if name != "standin.go" && (below != "" || !strings.HasSuffix(name, "_test.go")) {
				files[name] = filepath.Join(below, folder, name)
			}
		}
		return err
	}
	err := add("")
	for r := releaseOfAdapter; r > w.release; r-- {
		err = errors.Join(err, add("_before"+r.String()))
	}
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no files for %s", adapter, folder)
	}
	return files, err
}

// replaceFile replaces a file of the kubelet by a file of the adapter.
func replaceFile(path, with string) change {
	return func(w *workspace) (string, error) {
		content, err := os.ReadFile(filepath.Join(w.root, adapter, with))
		if err != nil {
			return "", fmt.Errorf("reading the adapter: %w", err)
		}
		verb := "replaced"
		if _, err := os.Stat(filepath.Join(w.original, path)); err != nil {
			verb = "added"
		}
		return fmt.Sprintf("%s %s by %s/%s, %d lines\n", verb, path, adapter, with,
			strings.Count(string(content), "\n")), w.write(path, content)
	}
}

func removeFile(path string) change {
	return func(w *workspace) (string, error) {
		if err := os.RemoveAll(filepath.Join(w.tree, path)); err != nil {
			return "", fmt.Errorf("removing %s: %w", path, err)
		}
		return fmt.Sprintf("removed %s\n", path), nil
	}
}

// splice is text that replaces a part of a file.
type splice struct {
	from, to token.Pos
	text     string
	said     string
}

// editFile edits a function or method in a file. The function edit returns the splices to make.
func editFile(path, function string,
	edit func(r release, source func(ast.Node) string, body *ast.BlockStmt) ([]splice, error),
) change {
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
		source := func(n ast.Node) string { return string(content[offset(n.Pos()):offset(n.End())]) }
		splices, err := edit(w.release, source, body)
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
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == function {
			return f.Body
		}
	}
	return nil
}

// handRuntimeOver wraps the kubelet's runtime at the place where the kubelet sets it. The wrapper
// gives the generator the CRI client for events, the endpoint for exit events, and
// runtime-request-timeout. With the wrapper, the kubelet's own inspections also show the ends that
// the generator has seen.
func handRuntimeOver(_ release, source func(ast.Node) string, body *ast.BlockStmt) ([]splice, error) {
	handed := make(map[string]bool) // the runtimes that are passed to a generator
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if ok && isSelector(call.Fun, "pleg", "NewGenericPLEG") && len(call.Args) >= 5 {
			// Count from the end: up to 1.36, the first argument is a logger.
			handed[source(call.Args[len(call.Args)-5])] = true
		}
		return true
	})
	var splices []splice
	ast.Inspect(body, func(n ast.Node) bool {
		assigned, ok := n.(*ast.AssignStmt)
		if !ok || len(assigned.Lhs) != 1 || len(assigned.Rhs) != 1 || !handed[source(assigned.Lhs[0])] {
			return true
		}
		runtime := assigned.Rhs[0]
		text := fmt.Sprintf("pleg.NodeRuntime(%s, kubeDeps.RemoteRuntimeService, kubeCfg.ContainerRuntimeEndpoint, "+
			"kubeCfg.RuntimeRequestTimeout.Duration)", source(runtime))
		splices = append(splices, splice{runtime.Pos(), runtime.End(), text,
			source(assigned.Lhs[0]) + " is now " + text})
		return true
	})
	switch {
	case len(handed) == 0:
		return nil, fmt.Errorf("there is no call of pleg.NewGenericPLEG with its arguments")
	case len(splices) != len(handed):
		return nil, fmt.Errorf("the runtime that pleg.NewGenericPLEG gets is set in %d places, not in one", len(splices))
	}
	return splices, nil
}

// publishConfirmed edits the kubelet so that it publishes an exit only when the runtime's status
// shows the exit.
func publishConfirmed(r release, _ func(ast.Node) string, body *ast.BlockStmt) ([]splice, error) {
	terminal := "podIsTerminal" // the function's parameter
	if r >= 38 {
		terminal = "podState == TerminatedPod"
	}
	statement := "podStatus = kubecontainer.Published(podStatus, " + terminal + ")"
	at := body.Lbrace + 1
	return []splice{{at, at, "\n\t" + statement, "begins with " + statement}}, nil
}

// ours are the metrics that the library registers in the kubelet's registry, under the kubelet's
// names.
var ours = []string{
	"PLEGRelistDuration", "PLEGRelistInterval", "PLEGPodRelistDuration", "PLEGDiscardEvents", "PLEGLastSeen",
	"EventedPLEGConn", "EventedPLEGConnErr", "EventedPLEGConnLatency", "RunningPodCount", "RunningContainerCount",
}

// sinceOnDemand is the metric in ours that release 1.36 added. The other metrics are older.
const sinceOnDemand = "PLEGPodRelistDuration"

// leaveMetricsOut removes the kubelet's registrations of the metrics in ours.
func leaveMetricsOut(r release, source func(ast.Node) string, body *ast.BlockStmt) ([]splice, error) {
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
	for _, name := range ours {
		if !slices.Contains(found, name) && (name != sinceOnDemand || r >= 36) {
			return nil, fmt.Errorf("of the metrics %v only %v are registered", ours, found)
		}
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
