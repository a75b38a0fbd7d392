package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// fork is a module that vendors a kubelet, such as KubeEdge, and its edited copy.
type fork struct {
	workspace
	copy string
}

// copyFork copies a module and its vendor folder.
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

// copyModule copies a folder without its Git history.
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

// vendoredVersion returns the version of Kubernetes in a modules.txt. If a fork replaces
// Kubernetes, vendoredVersion returns the fork's version.
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

// goPackage is a package in the output of go list.
type goPackage struct {
	Dir, ImportPath string
	Imports         []string
	Module          *struct{ Path, Version, GoVersion string } // nil for the standard library
}

// vendorLibrary copies the library into the vendor folder of the copy. It also copies packages that
// the library imports, if the vendor folder lacks them.
func (f *fork) vendorLibrary(ctx context.Context) error {
	out, err := command(ctx, f.root, "list", "-deps", "-json=Dir,ImportPath,Imports,Module", ".", "./cri").Output()
	if err != nil {
		return fmt.Errorf("listing the library's packages: %w", err)
	}
	packages := make(map[string]goPackage)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p goPackage
		if err := d.Decode(&p); err != nil {
			return fmt.Errorf("listing the library's packages: %w", err)
		}
		packages[p.ImportPath] = p
	}
	modules, err := os.ReadFile(f.vendored("modules.txt"))
	if err != nil {
		return err
	}
	text, args := string(modules), []string{"mod", "edit"}
	var add func(path string) error
	add = func(path string) error {
		p := packages[path]
		if _, err := os.Stat(f.vendored(path)); err == nil || p.Module == nil {
			return nil
		}
		needed := cmp.Or(p.Module.Version, "v0.0.0") // the library has no version here
		header := headerOf(p.Module.Path).FindStringSubmatch(text)
		if header == nil {
			header = []string{fmt.Sprintf("# %s %s\n## explicit; go %s\n", p.Module.Path, needed, p.Module.GoVersion), needed}
			text = header[0] + text
			args = append(args, "-require="+p.Module.Path+"@"+needed)
		}
		if older(header[1], needed) {
			return fmt.Errorf("%s is vendored in %s, and the library needs %s", p.Module.Path, header[1], needed)
		}
		if err := copyPackage(p.Dir, f.vendored(path)); err != nil {
			return fmt.Errorf("vendoring %s: %w", path, err)
		}
		fmt.Printf("vendored %s\n", path)
		text = strings.Replace(text, header[0], header[0]+path+"\n", 1)
		for _, i := range p.Imports {
			if err := add(i); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(add(library), add(library+"/cri")); err != nil {
		return err
	}
	if err := os.WriteFile(f.vendored("modules.txt"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the copy's modules.txt: %w", err)
	}
	if err := command(ctx, f.copy, args...).Run(); err != nil {
		return fmt.Errorf("requiring %s in the copy: %w", library, err)
	}
	return nil
}

// headerOf returns an expression that matches a module's lines in a modules.txt, but not the lines
// of the module's packages. The expression captures the version.
func headerOf(module string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^# ` + regexp.QuoteMeta(module) + ` (v\S+).*\n(?:## .*\n)*`)
}

// older reports whether v is older than other. Both have the form v1.2.3.
func older(v, other string) bool {
	return version.Compare("go"+strings.TrimPrefix(v, "v"), "go"+strings.TrimPrefix(other, "v")) < 0
}

func (f *fork) vendored(path string) string { return filepath.Join(f.copy, "vendor", path) }

// copyPackage copies the Go files of a folder, except tests.
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

// build builds the given packages of the copy. Without packages, it compiles the kubelet's
// packages. The environment decides whether the build uses cgo.
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
	cmd := command(ctx, f.copy, append(args, packages...)...)
	// Allow cgo if Go finds a C compiler, because edgecore's sqlite needs it.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(packages, ", "), err)
	}
	fmt.Printf("built %s in %s\n", strings.Join(packages, ", "), f.copy)
	return nil
}
