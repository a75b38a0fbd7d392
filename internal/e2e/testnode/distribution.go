package testnode

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// packages are the names of the distribution's packages, by program.
var packages = map[string]string{
	"runc": "runc", "conmon": "conmon", "skopeo": "skopeo", "xz": "xz-utils", "busybox": "busybox-static",
	"qemu-system-x86_64": "qemu-system-x86", "qemu-system-aarch64": "qemu-system-arm",
}

// Install installs missing programs from the distribution's packages.
func Install(ctx context.Context, programs ...string) error {
	var missing []string
	for _, p := range programs {
		_, err := exec.LookPath(p)
		if p == "busybox" {
			_, err = staticBusybox()
		}
		if err != nil {
			missing = append(missing, packages[p])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	what := strings.Join(missing, " and ")
	if err := NeedsRoot(); err != nil {
		return fmt.Errorf("installing %s: %w", what, err)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s not found, and no apt-get to install it with", what)
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, missing...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if _, err := output(cmd); err != nil {
			return fmt.Errorf("installing %s: %w", what, err)
		}
	}
	return nil
}

// staticBusybox returns the path of a statically linked busybox, which can run in an otherwise
// empty image.
func staticBusybox() (string, error) {
	path, err := exec.LookPath(cmp.Or(busyboxPath, "busybox"))
	if err != nil {
		return "", fmt.Errorf("looking for busybox: %w", err)
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New(path + " is not static")
		}
	}
	return path, nil
}
