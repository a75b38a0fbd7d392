package cri_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// crioWithExits starts a CRI-O with a folder of exit files, which the Runtime watches.
func crioWithExits(t *testing.T) (dir string, s *criserver.Server, r *cri.Runtime) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "exits")
	must(t, os.Mkdir(dir, 0o700))
	s, err := criserver.Start(criserver.WithModel(criserver.CRIO),
		serverconfig.With[criserver.Option](serverconfig.Config{ExitFiles: dir}))
	must(t, err)
	t.Cleanup(s.Stop)
	return dir, s, connect(t, s, cri.WithExitsDir(dir), quiet)
}

func writeExit(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestExitFiles(t *testing.T) {
	dir, s, r := crioWithExits(t)
	sandbox := s.RunPod(criserver.PodConfig{UID: "uid"})
	app, other := runContainer(t, s, sandbox, "app"), runContainer(t, s, sandbox, "other")
	writeExit(t, filepath.Join(dir, "before"), "1") // CRI-O has not handled this exit
	writeExit(t, filepath.Join(dir, "before.tmp"), "1")
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	serverconfig.Of(s).ResetCalls()
	w := watchExits(t, r)
	<-w.connected
	if got := w.next(t); got.ContainerID != "before" || got.ExitCode != 1 {
		t.Errorf("%+v", got)
	}
	if got := s.Calls(""); got != 1 || s.Calls("Version") != 1 {
		t.Errorf("%d calls, %d of them Version", got, s.Calls("Version"))
	}

	must(t, s.ExitContainer(app, 3, ""))
	got := w.next(t)
	info, err := os.Stat(filepath.Join(dir, app))
	must(t, err)
	if want := (pleg.ContainerExit{ContainerID: app, ExitCode: 3, FinishedAt: info.ModTime()}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// conmon writes exit files even while CRI-O is down.
	s.Down()
	must(t, s.ExitContainer(other, 137, ""))
	if got := w.next(t); got.ContainerID != other || got.ExitCode != 137 {
		t.Errorf("%+v", got)
	}
	// This file is written in place, not renamed, and ends in a newline.
	writeExit(t, filepath.Join(dir, "in-place"), "255\n")
	if got := w.next(t); got.ContainerID != "in-place" || got.ExitCode != 255 {
		t.Errorf("%+v", got)
	}
	w.cancel()
	if err := w.ended(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(w.exits) > 0 {
		t.Errorf("%+v", <-w.exits)
	}
}

// Bad files are counted, except temporary files. They do not delay the exit of a good file.
func TestBadExitFiles(t *testing.T) {
	dir, _, r := crioWithExits(t)
	elsewhere := filepath.Join(t.TempDir(), "file")
	writeExit(t, elsewhere, "0")
	w := watchExits(t, r)
	<-w.connected
	for i, make := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, nil, 0o600) },
		func(path string) error { return os.WriteFile(path, []byte("?"), 0o600) },
		func(path string) error { return os.WriteFile(path, []byte("2147483648"), 0o600) },
		func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("0", 100)), 0o600) },
		func(path string) error { return os.Symlink(elsewhere, path) },
		func(path string) error { return unix.Mkfifo(path, 0o600) },
		func(path string) error { // another process has opened the file for writing
			must(t, unix.Mkfifo(path, 0o600))
			fifo, err := os.OpenFile(path, os.O_RDWR, 0)
			t.Cleanup(func() { _ = fifo.Close() })
			return err
		},
	} {
		temporary := filepath.Join(dir, "bad.tmp")
		must(t, make(temporary))
		must(t, os.Rename(temporary, filepath.Join(dir, fmt.Sprint("bad", i))))
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder.tmp"), 0o700))
	must(t, os.Rename(filepath.Join(dir, "folder.tmp"), filepath.Join(dir, "folder")))
	writeExit(t, filepath.Join(dir, "good"), "1")
	if got := w.next(t); got.ContainerID != "good" {
		t.Errorf("%+v", got)
	}
	if got := metric(t, r, "pleg_cri_bad_items_total", "unreadable_exit"); got != 7 {
		t.Errorf("%v bad exits", got)
	}
}

// The exit file of a container in a virtual machine contains no code. The watch reports a hint, and
// neither an exit nor bad data.
func TestExitFileOfVirtualMachine(t *testing.T) {
	dir, _, r := crioWithExits(t)
	w := watchExits(t, r)
	<-w.connected
	writeExit(t, filepath.Join(dir, "vm"), "Exited")
	if got := w.next(t); got.ContainerID != "" {
		t.Errorf("%+v", got)
	}
	writeExit(t, filepath.Join(dir, "good"), "1")
	if got := w.next(t); got.ContainerID != "good" {
		t.Errorf("%+v", got)
	}
	if got := metric(t, r, "pleg_cri_bad_items_total", "unreadable_exit"); got != 0 {
		t.Errorf("%v bad exits", got)
	}
}

// If the folder is missing or removed, the watch ends, but its error does not wrap
// ErrEventsUnsupported.
func TestExitFilesWithoutFolder(t *testing.T) {
	dir, _, r := crioWithExits(t)
	for name, vanish := range map[string]func() error{
		"removed": func() error { return os.RemoveAll(dir) },
		"renamed": func() error { return os.Rename(dir, dir+".old") },
	} {
		w := watchExits(t, r)
		<-w.connected
		must(t, vanish())
		err := w.ended(t)
		if err == nil || errors.Is(err, pleg.ErrEventsUnsupported) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
		err = watchExits(t, r).ended(t)
		if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, pleg.ErrEventsUnsupported) {
			t.Errorf("%s: then %v", name, err)
		}
		must(t, os.Mkdir(dir, 0o700))
	}
	// The folder exists again.
	w := watchExits(t, r)
	<-w.connected
	writeExit(t, filepath.Join(dir, "c"), "0")
	if got := w.next(t); got.ContainerID != "c" {
		t.Errorf("%+v", got)
	}
}

// If the kernel's queue of events overflows, the watch ends with an error. After the error, the
// generator finds the missed exits by a list.
func TestExitFilesOverflow(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	held, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	dir, _, r := crioWithExits(t)
	connected, reading, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- r.WatchContainerExits(t.Context(), func() { close(connected) },
			func(pleg.ContainerExit) { <-reading })
	}()
	<-connected
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	writeExit(t, from, "0")
	for range held + 1000 { // two names in turn, because the kernel merges equal events
		must(t, os.Rename(from, to))
		from, to = to, from
	}
	close(reading)
	select {
	case err := <-done:
		if errors.Is(err, pleg.ErrEventsUnsupported) || !strings.Contains(err.Error(), "dropped") {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the watch did not end")
	}
	// Half of the files are gone when they are read, which is not bad data.
	if got := metric(t, r, "pleg_cri_bad_items_total", "unreadable_exit"); got != 0 {
		t.Errorf("%v bad exits", got)
	}
}
