package testnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// module is the path of this Go module. All other paths are relative to the folder of its go.mod.
const module = "github.com/kubepleg/pleg/internal/e2e"

// Root returns the root of the repository. The working folder must be inside this module, as it is
// in tests and with "go run".
func Root(ctx context.Context) (string, error) {
	e2e, err := moduleDir(ctx)
	return filepath.Join(e2e, "..", ".."), err
}

func moduleDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := output(cmd)
	if err != nil {
		return "", fmt.Errorf("finding the folder of module %s from the working folder: %w", module, err)
	}
	return strings.TrimSpace(out), nil
}

// arch is the processor that programs are built for, and busyboxPath is a static busybox for it. If
// busyboxPath is empty, busybox is looked up in PATH. Only Prepare changes these variables.
var (
	arch        = runtime.GOARCH
	busyboxPath string
)

// Prepare returns two folders below .cache: one with the programs of a runtime, and one with the
// images. The processor goarch may differ from this machine's. The argument busybox is the path of
// a static busybox for that processor. A program that calls Prepare must not call Start.
func Prepare(ctx context.Context, name, goarch, busybox string) (programs, images string, err error) {
	runtimeName, arch, busyboxPath = name, goarch, busybox
	r, err := Chosen()
	if err != nil {
		return "", "", err
	}
	return r.prepare(ctx)
}

// prepare returns two folders: one with the runtime's programs, and one with the images. It holds a
// lock, so that only one package of a "go test ./..." builds and installs at a time.
func (r Runtime) prepare(ctx context.Context) (programs, images string, err error) {
	root, err := Root(ctx)
	if err != nil {
		return "", "", err
	}
	cache := filepath.Join(root, ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", "", fmt.Errorf("making a folder for what is built: %w", err)
	}
	unlock, err := lock(filepath.Join(cache, "testnode.lock"))
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if programs, err = r.family.prepare(ctx); err != nil {
		return "", "", fmt.Errorf("getting %s: %w", r.Name, err)
	}
	if images, err = prepareImages(ctx); err != nil {
		return "", "", fmt.Errorf("making the images: %w", err)
	}
	return programs, images, nil
}

// cached returns the folder .cache/name with the given files. If a file is missing, the function
// fill writes all files into an empty folder. Then cached moves the files, so an interruption
// leaves no half-written file.
func cached(
	ctx context.Context, name string, files []string, fill func(ctx context.Context, into string) error,
) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", name)
	if allExist(dir, files) {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fill(ctx, tmp); err != nil {
		return "", err
	}
	for _, f := range files {
		if err := os.Rename(filepath.Join(tmp, f), filepath.Join(dir, f)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// goBuild builds packages of the module in the folder dir.
func goBuild(ctx context.Context, dir, into string, packages ...string) error {
	args := []string{"build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", into + string(filepath.Separator)}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOARCH="+arch)
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(packages, ", "), err)
	}
	return nil
}

func allExist(dir string, names []string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// lock takes an exclusive lock on a file. It returns a function that releases the lock. If the
// process dies, the kernel releases the lock.
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

// output runs cmd and returns its stdout. The error includes the end of cmd's output.
func output(cmd *exec.Cmd) (string, error) {
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
