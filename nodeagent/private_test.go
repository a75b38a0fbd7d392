package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobody runs a shell script as an unprivileged user, and returns the script's output. Without
// root, it skips the test.
func nobody(t *testing.T, script string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		fmt.Fprintf(os.Stderr, "SKIPPED: %s: it needs root to be another user\n", t.Name())
		t.Skip("it needs root to be another user")
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

// openDir returns a directory that every user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nodeagent-open-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // every user must be able to enter
		t.Fatal(err)
	}
	return dir
}

// An unprivileged user cannot access the agent's volumes, logs, state directory or locks, even if
// an earlier version left them open to every user.
func TestUnprivilegedUser(t *testing.T) {
	dir := openDir(t)
	state := filepath.Join(dir, "state")
	volume := filepath.Join(state, "pods", "1-2", "volumes", "v")
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(dir, "run", "cri.sock.nodeagent.lock")
	made := []error{}
	for path, mode := range map[string]os.FileMode{
		filepath.Join(volume, "id"):                    0o755 | os.ModeSetuid,
		filepath.Join(state, "logs", "n_a_1-2", "log"): 0o644,
		filepath.Join(state, "lock"):                   0o644,
		lock:                                           0o644,
	} {
		made = append(made, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, id, 0o600), os.Chmod(path, mode))
	}
	if err := errors.Join(append(made, os.Chmod(volume, 0o777))...); err != nil {
		t.Fatal(err)
	}
	attempts := map[string]string{ // scripts that print "done" if they succeed
		"setuid":     `[ "$(` + volume + `/id -u)" = 0 ] && echo done`,
		"volume":     "touch " + volume + "/x && echo done",
		"log":        "cat " + state + "/logs/*/log > /dev/null && echo done",
		"list":       "ls " + state + " && echo done",
		"state lock": "flock -n " + state + "/lock echo done",
		"cri lock":   "flock -n " + lock + " echo done",
	}
	for name, script := range attempts {
		if out := nobody(t, script); !strings.HasSuffix(out, "done\n") {
			t.Fatalf("%s fails even before the agent starts, so it tests nothing: %s", name, out)
		}
	}
	_, stderr, ended := begin(t, parsed(t, "--state-dir", state, "--manifests", dir,
		"--runtime-endpoint", "unix://"+filepath.Join(dir, "run", "cri.sock")))
	stderr.await(t, "Skipping pod synchronization")
	ended()
	for name, script := range attempts {
		if out := nobody(t, script); !strings.Contains(out, "ermission denied") || strings.Contains(out, "done") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// The agent refuses a state directory if another user owns it or may write to it, because its
// content cannot be trusted.
func TestStateDirectoryOfOthers(t *testing.T) {
	dir := openDir(t)
	for name, prepare := range map[string]func(path string) error{
		"writable": func(path string) error { return os.Chmod(path, 0o777|os.ModeSticky) },
		"another's": func(path string) error {
			nobody(t, "true") // skips the test if it does not run as root
			return os.Chown(path, 65534, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.Mkdir(path, 0o755), prepare(path)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := run(ctx, parsed(t, "--state-dir", path, "--manifests", dir,
				"--runtime-endpoint", "unix://"+dir+"/cri.sock"), &bytes.Buffer{}, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "private") {
				t.Error(err)
			}
		})
	}
}
