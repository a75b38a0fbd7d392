package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// workspace is where everything is.
type workspace struct {
	adapter  string // the adapter's module
	cache    string // what is made, below a folder that git ignores
	original string // the sources of k8s.io/kubernetes in the module cache
	version  string // of them
	tree     string // the copy that is edited
}

func findWorkspace(ctx context.Context) (*workspace, error) {
	w := &workspace{adapter: "."}
	root, err := w.command(ctx, "list", "-m", "-f", "{{.Dir}}", "github.com/kubepleg/pleg").Output()
	if err != nil {
		return nil, fmt.Errorf("finding this repository from the working folder: %w", err)
	}
	w.adapter = filepath.Join(strings.TrimSpace(string(root)), "examples", "kubelet", "adapter")
	out, err := w.command(ctx, "mod", "download", "-json", kubernetes).Output()
	if err != nil {
		return nil, fmt.Errorf("downloading %s: %w", kubernetes, err)
	}
	var module struct{ Dir, Version string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, fmt.Errorf("reading where %s is: %w", kubernetes, err)
	}
	w.original, w.version = module.Dir, module.Version
	w.cache = filepath.Join(strings.TrimSpace(string(root)), ".cache", "kubelet")
	w.tree = filepath.Join(w.cache, "kubernetes-"+module.Version)
	return w, os.MkdirAll(w.cache, 0o755)
}

// folders of the module that a kubelet and its tests are built from.
var folders = []string{"cmd", "pkg", "plugin", "test", "third_party"}

// copySources makes the copy, unless it is there from before. It is moved into its place
// whole.
func (w *workspace) copySources(context.Context) error {
	if _, err := os.Stat(w.tree); err == nil {
		fmt.Printf("%s is there from before\n", w.tree)
		return nil
	}
	part := w.tree + ".part"
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("removing an unfinished copy: %w", err)
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return fmt.Errorf("making a folder for the copy: %w", err)
	}
	files := 0
	for _, name := range append(slices.Clone(folders), "go.mod", "LICENSE") {
		n, err := copyAll(filepath.Join(w.original, name), filepath.Join(part, name))
		if err != nil {
			return fmt.Errorf("copying the sources of %s: %w", kubernetes, err)
		}
		files += n
	}
	fmt.Printf("copied %d files of %s %s to %s\n", files, kubernetes, w.version, w.tree)
	return os.Rename(part, w.tree)
}

// copyAll copies a file or a folder, and makes what is read-only in the module cache
// writable. A folder that is a module of its own is left out.
func copyAll(from, to string) (files int, err error) {
	err = filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		return os.WriteFile(filepath.Join(to, rel), content, 0o644)
	})
	return files, err
}

// writeModfile writes the adapter's go.mod with the copy in the place of the release, and
// its go.sum beside it.
func (w *workspace) writeModfile(ctx context.Context) (string, error) {
	modfile := filepath.Join(w.cache, "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		if _, err := copyAll(filepath.Join(w.adapter, name), filepath.Join(w.cache, name)); err != nil {
			return "", fmt.Errorf("copying %s of the adapter: %w", name, err)
		}
	}
	if err := w.command(ctx, "mod", "edit", "-replace="+kubernetes+"="+w.tree, modfile).Run(); err != nil {
		return "", fmt.Errorf("writing %s: %w", modfile, err)
	}
	return modfile, nil
}

// restore puts a file back as it was released and returns its content. What was never in
// the release is removed.
func (w *workspace) restore(path string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(w.original, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, os.RemoveAll(filepath.Join(w.tree, path))
	}
	if err != nil {
		return nil, fmt.Errorf("reading the released %s: %w", path, err)
	}
	return content, w.write(path, content)
}

// write writes a file of the copy, unless it has that content.
func (w *workspace) write(path string, content []byte) error {
	full := filepath.Join(w.tree, path)
	if old, err := os.ReadFile(full); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.WriteFile(full, content, 0o644); err != nil {
		return fmt.Errorf("writing the copy of %s: %w", path, err)
	}
	return nil
}
