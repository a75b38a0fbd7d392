package containerd

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// installDistribution installs what containerd needs of the distribution: runc,
// and a static busybox for the containers to run.
func installDistribution(ctx context.Context) error {
	var missing []string
	if _, err := exec.LookPath("runc"); err != nil {
		missing = append(missing, "runc")
	}
	if _, err := staticBusybox(); err != nil {
		missing = append(missing, "busybox-static")
	}
	if len(missing) == 0 {
		return nil
	}
	if err := NeedsRoot(); err != nil {
		return fmt.Errorf("installing %s: %w", strings.Join(missing, " and "), err)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s not found, and no apt-get to install it with", strings.Join(missing, " and "))
	}
	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	for _, args := range [][]string{{"update"}, install} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if _, err := output(cmd); err != nil {
			return fmt.Errorf("installing %s: %w", strings.Join(missing, " and "), err)
		}
	}
	return nil
}

// staticBusybox finds a busybox that runs in an otherwise empty image.
func staticBusybox() (string, error) {
	path, err := exec.LookPath("busybox")
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
