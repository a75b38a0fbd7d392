package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
