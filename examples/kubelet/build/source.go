package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// fork is a module that vendors a kubelet, as KubeEdge's is, and the copy of it that is edited.
type fork struct {
	workspace
	copy string
}

// copyFork copies a module with its vendor folder.
func copyFork(root, source, to string) (*fork, error) {
	modules, err := os.ReadFile(filepath.Join(source, "vendor", "modules.txt"))
	if err != nil {
		return nil, fmt.Errorf("%s has no vendor folder: %w", source, err)
	}
	f := &fork{copy: to}
	f.root = root
	f.made = filepath.Dir(to)
	if f.version, err = vendoredVersion(string(modules)); err != nil {
		return nil, err
	}
	if f.release, err = releaseOf(f.version); err != nil {
		return nil, err
	}
	f.original = filepath.Join(source, "vendor", kubernetes)
	f.tree = f.vendored(kubernetes)
	if err := os.RemoveAll(f.copy); err != nil {
		return nil, fmt.Errorf("removing the copy from before: %w", err)
	}
	if err := copyModule(source, f.copy); err != nil {
		return nil, fmt.Errorf("copying %s: %w", source, err)
	}
	fmt.Printf("copied %s, which has %s %s, to %s\n", source, kubernetes, f.version, f.copy)
	return f, nil
}

// copyModule copies a folder, but for its history.
func copyModule(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.Name() == ".git":
		case e.IsDir():
			err = os.CopyFS(target, os.DirFS(source))
		case e.Type().IsRegular():
			err = errors.Join(os.MkdirAll(to, 0o755), copyFile(source, target))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var ofKubernetes = regexp.MustCompile(`(?m)^# ` + kubernetes + ` (v1\.\S+)( => \S+( (v1\.\S+))?)?$`)

// vendoredVersion returns the version of Kubernetes in a modules.txt: that of a fork, if it has
// one.
func vendoredVersion(modules string) (string, error) {
	m := ofKubernetes.FindStringSubmatch(modules)
	if m == nil {
		return "", fmt.Errorf("vendor/modules.txt has no version of %s", kubernetes)
	}
	if m[4] != "" {
		return m[4], nil
	}
	return m[1], nil
}

// vendorLibrary puts the library into the copy's vendor folder.
func (f *fork) vendorLibrary(ctx context.Context) error {
	out, err := command(ctx, f.root, "list", "-deps", "-json=Dir,ImportPath,Imports,Module", ".", "./cri").Output()
	if err != nil {
		return fmt.Errorf("listing the library's packages: %w", err)
	}
	var packages []string
	var goVersion string
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			Dir, ImportPath string
			Imports         []string
			Module          *struct{ Path, GoVersion string }
		}
		if err := d.Decode(&p); err != nil {
			return fmt.Errorf("listing the library's packages: %w", err)
		}
		if p.Module == nil || p.Module.Path != library {
			continue
		}
		packages, goVersion = append(packages, p.ImportPath), p.Module.GoVersion
		if err := copyPackage(p.Dir, f.vendored(p.ImportPath)); err != nil {
			return fmt.Errorf("copying %s: %w", p.ImportPath, err)
		}
		for _, i := range p.Imports {
			host, _, _ := strings.Cut(i, "/")
			if _, err := os.Stat(f.vendored(i)); err != nil && strings.Contains(host, ".") && !strings.HasPrefix(i, library) {
				return fmt.Errorf("the library needs %s, which is not vendored", i)
			}
		}
	}
	slices.Sort(packages)
	path := f.vendored("modules.txt")
	modules, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	entry := fmt.Sprintf("# %s v0.0.0\n## explicit; go %s\n%s\n", library, goVersion, strings.Join(packages, "\n"))
	if err := os.WriteFile(path, append([]byte(entry), modules...), 0o644); err != nil {
		return fmt.Errorf("writing the copy's modules.txt: %w", err)
	}
	if err := command(ctx, f.copy, "mod", "edit", "-require="+library+"@v0.0.0").Run(); err != nil {
		return fmt.Errorf("requiring %s in the copy: %w", library, err)
	}
	fmt.Printf("vendored %d packages of %s\n", len(packages), library)
	return nil
}

func (f *fork) vendored(path string) string { return filepath.Join(f.copy, "vendor", path) }

// copyPackage copies the Go files of a folder, but for tests.
func copyPackage(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.go"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		if err := copyFile(path, filepath.Join(to, filepath.Base(path))); err != nil {
			return err
		}
	}
	return nil
}

// build builds the programs of the copy that are asked for; without any, it compiles the kubelet's
// packages.
func (f *fork) build(ctx context.Context, packages []string) error {
	args := []string{"build", "-mod=vendor", "-trimpath"}
	if len(packages) == 0 {
		packages = []string{kubernetes + "/pkg/kubelet/..."}
	} else {
		into, err := filepath.Abs(cmp.Or(*output, filepath.Join(f.made, "bin")))
		if err != nil {
			return err
		}
		args = append(args, "-o", into+string(filepath.Separator))
	}
	if err := command(ctx, f.copy, append(args, packages...)...).Run(); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(packages, ", "), err)
	}
	fmt.Printf("built %s in %s\n", strings.Join(packages, ", "), f.copy)
	return nil
}
