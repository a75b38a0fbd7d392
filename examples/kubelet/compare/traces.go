package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// outside are the folders that a kubelet makes whatever its root is. Those that were there
// before are left alone.
var outside = []string{"/var/lib/kubelet", "/var/log/containers", "/usr/libexec/kubernetes"}

var made = func() []string {
	var missing []string
	for _, d := range outside {
		if _, err := os.Stat(d); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, d)
		}
	}
	return missing
}()

// removeMade removes them, unless somebody else's kubelet may be using them.
func removeMade() error {
	if others, _ := filepath.Glob("/proc/[0-9]*/comm"); slices.ContainsFunc(others, func(path string) bool {
		name, _ := os.ReadFile(path)
		return string(name) == "kubelet\n"
	}) {
		return nil
	}
	var errs []error
	for _, d := range made {
		errs = append(errs, os.RemoveAll(d))
	}
	return errors.Join(errs...)
}

// daemonPid returns the process of the node's containerd.
func (n *node) daemonPid() (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("looking for containerd: %w", err)
	}
	config := filepath.Join(filepath.Dir(n.daemon.Socket()), "config.toml")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.Contains(string(args), "--config\x00"+config) {
			return pid, nil
		}
	}
	return 0, errors.New("looking for containerd: it does not run")
}
