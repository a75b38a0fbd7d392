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

// module is this module's path. The folder of its go.mod is the starting point for every other path.
const module = "github.com/kubepleg/pleg/internal/e2e"

// Root returns the root of the repository. The working folder must be inside this module,
// as it is in tests and with "go run".
func Root(ctx context.Context) (string, error) {
	e2e, err := moduleDir(ctx)
	return filepath.Join(e2e, "..", ".."), err
}

// moduleDir returns the folder of this module.
func moduleDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := output(cmd)
	if err != nil {
		return "", fmt.Errorf("finding the folder of module %s from the working folder: %w", module, err)
	}
	return strings.TrimSpace(out), nil
}

// The machine that programs are built for, unless Prepare changes it: its processor, and a static
// busybox for it. If busyboxPath is empty, busybox is looked up.
var (
	arch        = runtime.GOARCH
	busyboxPath string
)

// Prepare returns the folders of a runtime's programs and of the images, below .cache, also for a
// machine of another processor. busybox is a static one for that machine. A program that calls
// Prepare must not call Start.
func Prepare(ctx context.Context, name, goarch, busybox string) (programs, images string, err error) {
	runtimeName, arch, busyboxPath = name, goarch, busybox
	r, err := Chosen()
	if err != nil {
		return "", "", err
	}
	return r.prepare(ctx)
}

// prepare returns the folders of the runtime's programs and of the images. Packages of a "go test
// ./..." run at the same time: one of them builds and installs.
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

// cached returns a folder below .cache that holds files. If one is missing, fill makes them in an
// empty folder, and cached moves them in. An interruption then leaves nothing half done.
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

// lock takes an exclusive lock on a file, and returns a function that releases it. The kernel
// releases it when the process dies.
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

// output runs cmd and returns its stdout. Its error has the end of what cmd wrote.
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
