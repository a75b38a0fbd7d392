// Package pinned builds the programs that tests run from the versions that a module of
// nobody else's pins, and keeps them.
package pinned

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// module is this module's path; the folder of its go.mod is what everything else
// is found from.
const module = "github.com/kubepleg/pleg/internal/e2e"

// Programs is a folder of programs below .cache at the root of the repository. It is used
// again until the pinned versions change.
type Programs struct {
	// Dir is the folder.
	Dir string

	e2e    string // the folder of this module
	build  string // the folder of the module that pins the versions
	unlock func()
}

// Open returns the programs that the module NAME/build below internal/e2e pins, which has
// versions of its own: theirs and the library's requirements would otherwise move each
// other. Packages of a "go test ./..." run at the same time; one of them builds, and the
// others wait until it calls Close.
func Open(ctx context.Context, name string) (*Programs, error) {
	e2e, err := moduleDir(ctx)
	if err != nil {
		return nil, err
	}
	p := &Programs{e2e: e2e, build: filepath.Join(e2e, name, "build")}
	key, err := buildKey(p.build)
	if err != nil {
		return nil, err
	}
	p.Dir = filepath.Join(e2e, "..", "..", ".cache", name+"-"+key)
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder for the programs of %s: %w", name, err)
	}
	if p.unlock, err = lock(filepath.Join(p.Dir, "lock")); err != nil {
		return nil, err
	}
	return p, nil
}

// Close lets others open the programs.
func (p *Programs) Close() { p.unlock() }

// Build builds those of the pinned packages that are missing.
func (p *Programs) Build(ctx context.Context, packages ...string) error {
	return p.buildIn(ctx, p.build, packages)
}

// BuildOwn builds those of the packages of this module, by their paths in it, that are
// missing.
func (p *Programs) BuildOwn(ctx context.Context, paths ...string) error {
	var packages []string
	for _, path := range paths {
		packages = append(packages, module+"/"+path)
	}
	return p.buildIn(ctx, p.e2e, packages)
}

// buildIn builds packages in the module of a folder. It builds beside the target and moves the
// results in, so that an interrupted build leaves nothing half done.
func (p *Programs) buildIn(ctx context.Context, dir string, packages []string) error {
	var names []string
	for _, path := range packages {
		names = append(names, filepath.Base(path))
	}
	if AllExist(p.Dir, names...) {
		return nil
	}
	tmp, err := os.MkdirTemp(p.Dir, "build-")
	if err != nil {
		return fmt.Errorf("making a folder to build in: %w", err)
	}
	defer os.RemoveAll(tmp)
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", tmp + string(filepath.Separator)}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if _, err := Output(cmd); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(packages, ", "), err)
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(p.Dir, name)); err != nil {
			return fmt.Errorf("putting %s in its place: %w", name, err)
		}
	}
	return nil
}

// AllExist reports whether a folder has all of some files.
func AllExist(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// moduleDir returns the folder of this module. The working folder must be inside a module
// that requires it, as it is in tests and with "go run".
func moduleDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := Output(cmd)
	if err != nil {
		return "", fmt.Errorf("finding the folder of module %s from the working folder: %w", module, err)
	}
	return strings.TrimSpace(out), nil
}

// buildKey changes whenever what is built would.
func buildKey(dir string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("reading what pins the versions: %w", err)
		}
		h.Write(b)
	}
	fmt.Fprint(h, runtime.Version(), runtime.GOARCH)
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

// lock takes an exclusive lock on a file and returns what gives it back. The
// kernel gives it back when the process dies.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the build: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// Output runs cmd and returns what it wrote; its error carries the end of what
// it complained of.
func Output(cmd *exec.Cmd) (string, error) {
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, tail(complaint.String()+out.String(), 2000))
	}
	return out.String(), nil
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
