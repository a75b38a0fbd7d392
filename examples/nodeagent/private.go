package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// makePrivate makes directories that only the agent's user may enter, and closes those that an earlier agent left open.
// In a volume the root of a container may leave a setuid program, which is root's on the host too.
func makePrivate(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return fmt.Errorf("making a private directory: %w", err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making a private directory: %w", err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("looking at a private directory: %w", err)
		}
		owner := int(info.Sys().(*syscall.Stat_t).Uid)
		if !info.IsDir() || owner != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("%s cannot be private: it is %v of user %d", dir, info.Mode(), owner)
		}
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
			return fmt.Errorf("making a directory private: %w", err)
		}
	}
	return nil
}

// lock makes sure that no other agent has a state directory or a runtime: two would remove each other's pods. The lock
// ends with the process; the file stays, or two others could have two files. Who can open it can take the lock.
func lock(path string) (held io.Closer, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of a lock file: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	if err := file.Chmod(0o600); err != nil { // an earlier agent let everybody open it
		return nil, errors.Join(fmt.Errorf("closing the lock file to others: %w", err), file.Close())
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another agent has %s: %w", path, err), file.Close())
	}
	return file, nil
}
