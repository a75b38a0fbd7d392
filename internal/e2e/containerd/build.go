package containerd

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

// buildModule is the folder of the module that pins and builds containerd, seen
// from this module's folder. It has versions of its own: containerd's and the
// library's requirements would otherwise move each other.
var buildModule = filepath.Join("containerd", "build")

// binaries are the programs of containerd that are built.
var binaries = []string{"containerd", "containerd-shim-runc-v2", "ctr"}

// Root returns the root of the repository. The working folder must be inside a module
// that requires this one, as it is in tests and with "go run".
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

// Build returns the folder that holds containerd's binaries and the test images,
// building what is missing. The folder is below .cache at the root of the
// repository and is used again until the pinned versions change.
func Build(ctx context.Context) (string, error) {
	e2e, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	key, err := buildKey(filepath.Join(e2e, buildModule))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(e2e, "..", "..", ".cache", "containerd-"+key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the folder for containerd's binaries: %w", err)
	}
	// Packages of a "go test ./..." run at the same time; one of them builds.
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	if err := installDistribution(ctx); err != nil {
		return "", err
	}
	if !allExist(dir, binaries...) {
		if err := goBuild(ctx, filepath.Join(e2e, buildModule), dir, containerdPackages()...); err != nil {
			return "", err
		}
	}
	if !allExist(dir, "pause") {
		if err := goBuild(ctx, e2e, dir, module+"/containerd/pause"); err != nil {
			return "", err
		}
	}
	if err := writeImages(dir); err != nil {
		return "", err
	}
	return dir, nil
}

func containerdPackages() []string {
	var packages []string
	for _, b := range binaries {
		packages = append(packages, "github.com/containerd/containerd/v2/cmd/"+b)
	}
	return packages
}

// buildKey changes whenever what is built would.
func buildKey(dir string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("reading what pins containerd: %w", err)
		}
		h.Write(b)
	}
	fmt.Fprint(h, runtime.Version(), runtime.GOARCH)
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

// goBuild builds packages in the module at dir. It builds beside the target and
// moves the results in, so that an interrupted build leaves nothing half done.
func goBuild(ctx context.Context, dir, target string, packages ...string) error {
	tmp, err := os.MkdirTemp(target, "build-")
	if err != nil {
		return fmt.Errorf("making a folder to build in: %w", err)
	}
	defer os.RemoveAll(tmp)
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", tmp + string(filepath.Separator)}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(packages, ", "), err)
	}
	for _, p := range packages {
		name := filepath.Base(p)
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(target, name)); err != nil {
			return fmt.Errorf("putting %s in its place: %w", name, err)
		}
	}
	return nil
}

func allExist(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
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

// output runs cmd and returns what it wrote; its error carries the end of what
// it complained of.
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
