package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	kubernetes = "k8s.io/kubernetes"
	library    = "github.com/kubepleg/pleg"
)

// workspace contains the paths of the repository, the sources and the edited copy.
type workspace struct {
	root     string // root of this repository
	release  release
	version  string // the kubelet's version
	original string // the sources of k8s.io/kubernetes, which stay unchanged
	tree     string // the edited copy
	made     string // the folder for everything built from the release; git ignores it
}

func findRoot(ctx context.Context) (string, error) {
	root, err := command(ctx, ".", "list", "-m", "-f", "{{.Dir}}", library).Output()
	if err != nil {
		return "", fmt.Errorf("finding this repository from the working folder: %w", err)
	}
	return strings.TrimSpace(string(root)), nil
}

// findWorkspace downloads the sources of a release, and returns their workspace.
func findWorkspace(ctx context.Context, root, version string) (*workspace, error) {
	w := &workspace{root: root}
	var err error
	if w.release, err = releaseOf(version); err != nil {
		return nil, err
	}
	w.made = filepath.Join(root, ".cache", "kubelet", w.release.String())
	w.tree = filepath.Join(w.made, "kubernetes-"+version)
	if err := os.MkdirAll(w.made, 0o755); err != nil {
		return nil, fmt.Errorf("making a folder for the release: %w", err)
	}
	out, err := command(ctx, root, "mod", "download", "-json", kubernetes+"@"+version).Output()
	if err != nil {
		return nil, fmt.Errorf("downloading %s %s: %w", kubernetes, version, err)
	}
	var module struct{ Dir, Version string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, fmt.Errorf("reading where %s is: %w", kubernetes, err)
	}
	w.original, w.version = module.Dir, module.Version
	return w, nil
}

// command returns a go command that runs in a folder. It builds without cgo unless the environment
// sets CGO_ENABLED.
func command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// Later entries win over earlier ones.
	cmd.Env = slices.Concat([]string{"CGO_ENABLED=0"}, os.Environ(), []string{"GOWORK=off"})
	cmd.Stderr = os.Stderr
	return cmd
}

// folders are the folders of k8s.io/kubernetes that a kubelet and its tests need.
var folders = []string{"cmd", "pkg", "plugin", "test", "third_party"}

// copySources makes the copy, unless the copy exists. It makes the copy at a temporary path and
// then moves it, so that an interruption leaves no partial copy at the final path.
func (w *workspace) copySources(ctx context.Context) error {
	if _, err := os.Stat(w.tree); err == nil {
		fmt.Printf("%s is there from before\n", w.tree)
		return nil
	}
	part := w.tree + ".part"
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("removing an unfinished copy: %w", err)
	}
	for _, name := range folders {
		if err := os.CopyFS(filepath.Join(part, name), os.DirFS(filepath.Join(w.original, name))); err != nil {
			return fmt.Errorf("copying the sources of %s: %w", kubernetes, err)
		}
	}
	if err := w.writeModfile(ctx, filepath.Join(part, "go.mod")); err != nil {
		return err
	}
	fmt.Printf("copied %s %s to %s\n", kubernetes, w.version, w.tree)
	return os.Rename(part, w.tree)
}

// copyFile copies a file. Files in the module cache are read-only, but the copy is writable.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// stockModfile returns the path of the go.mod for the unchanged release. The go.mod is made once,
// and moved to its path when it is complete, because several processes may build at the same time.
func (w *workspace) stockModfile(ctx context.Context) (string, error) {
	dir := filepath.Join(w.made, "stock-"+w.version)
	modfile := filepath.Join(dir, "go.mod")
	if _, err := os.Stat(modfile); err == nil {
		return modfile, nil
	}
	part, err := os.MkdirTemp(w.made, "stock")
	if err != nil {
		return "", fmt.Errorf("making a folder for go.mod: %w", err)
	}
	if err := w.writeModfile(ctx, filepath.Join(part, "go.mod")); err != nil {
		return "", err
	}
	if err := os.Rename(part, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("making %s: %w", dir, err)
	}
	return modfile, nil
}

// writeModfile writes the release's go.mod and go.sum. It replaces the modules of the release's own
// repository by their published versions.
func (w *workspace) writeModfile(ctx context.Context, path string) error {
	if err := copyFile(filepath.Join(w.original, "go.mod"), path); err != nil {
		return fmt.Errorf("copying the release's go.mod: %w", err)
	}
	known, err := os.ReadFile(filepath.Join(w.original, "go.sum"))
	if err != nil {
		return fmt.Errorf("reading the release's go.sum: %w", err)
	}
	if err := os.WriteFile(strings.TrimSuffix(path, ".mod")+".sum", append(known, sums...), 0o644); err != nil {
		return fmt.Errorf("writing %s's sums: %w", path, err)
	}
	out, err := command(ctx, w.root, "mod", "edit", "-json", path).Output()
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	var module struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	args := []string{"mod", "edit"}
	for _, r := range module.Require {
		if r.Version == "v0.0.0" {
			// Drop the requirement, because some of these modules are missing on some mirrors.
			// Later, go list adds the modules that a kubelet needs.
			args = append(args, "-droprequire="+r.Path, "-replace="+r.Path+"="+r.Path+"@v0"+strings.TrimPrefix(w.version, "v1"))
		}
	}
	if err := command(ctx, w.root, append(args, path)...).Run(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	require := command(ctx, w.original, "list", "-mod=mod", "-modfile="+path, "-deps", "./cmd/kubelet")
	var said strings.Builder // shown only with an error, because the command prints hundreds of packages
	require.Stderr = &said
	if err := require.Run(); err != nil {
		reasons := slices.DeleteFunc(strings.Split(said.String(), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "go: found ")
		})
		return fmt.Errorf("finding the modules of %s %s: %w\n%s", kubernetes, w.version, err, strings.Join(reasons, "\n"))
	}
	return nil
}

// requireLibrary adds the library of this repository to the copy's go.mod.
func (w *workspace) requireLibrary(ctx context.Context) error {
	err := command(ctx, w.tree, "mod", "edit", "-require="+library+"@v0.0.0", "-replace="+library+"="+w.root).Run()
	if err != nil {
		return fmt.Errorf("requiring %s in the copy: %w", library, err)
	}
	return nil
}

// restore restores a file of the release and returns its content. If the release does not contain
// the file, restore removes it.
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

// restoreFolder restores the Go files of a folder to those of the release.
func (w *workspace) restoreFolder(folder string) error {
	for _, of := range []string{w.original, w.tree} {
		files, err := filepath.Glob(filepath.Join(of, folder, "*.go"))
		if err != nil {
			return err
		}
		for _, path := range files {
			if _, err := w.restore(filepath.Join(folder, filepath.Base(path))); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes a file of the copy. It does nothing if the content is the same.
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
