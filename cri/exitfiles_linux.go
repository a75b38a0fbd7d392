package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
)

// This file watches CRI-O's exit files. conmon, the process that CRI-O runs for each container,
// writes a file when the container has exited. The file's name is the container's ID, and its
// content is the exit code. conmon writes the file under another name and renames it. CRI-O watches
// the folder too, and removes the file when it has handled the exit. The end time in CRI-O's status
// is the time of another file of conmon's. It differs from the exit file's time by at most a tick
// of the kernel's clock.
//
// For containers in virtual machines, there is no conmon. CRI-O itself writes the file, before its
// status contains the code. The content is then the word Exited instead of a code.

// exitFileEvents are the inotify events that the package watches for: a file was renamed into the
// folder or written in place, or the folder is gone.
const exitFileEvents = unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
	unix.IN_ONLYDIR

// maxExitFileBytes is the size limit of an exit file, whose content is a number of a few digits.
const maxExitFileBytes = 32

// watchExitFiles reports exits from the files in the exits directory: first from the existing files, then
// from each new file. If a file exists, CRI-O has not handled the exit: it is not running, or it missed the
// exit while it was starting.
func (r *Runtime) watchExitFiles(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	dir := r.opts.exitsDir
	watch, files, err := openExitsDir(dir)
	if errors.Is(err, fs.ErrNotExist) && !r.opts.exitsDirGiven {
		err = fmt.Errorf("%w: %w", pleg.ErrEventsUnsupported, err) // it may exist, but not be mounted here
	}
	if err != nil {
		return fmt.Errorf("cri: watching the exit files in %s: %w", dir, err)
	}
	defer watch.Close()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = watch.SetReadDeadline(time.Unix(1, 0)) // in the past, so that Read returns
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
	}()
	connected()
	for _, f := range files {
		if !f.IsDir() && !isTemporary(f.Name()) {
			r.tellExitFile(ctx, dir, f.Name(), observe)
		}
	}
	buffer := make([]byte, 4<<10)
	for {
		n, err := watch.Read(buffer)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if err == nil {
			err = eachFileEvent(buffer[:n], func(e fileEvent) error {
				name, err := newFile(e)
				if name != "" {
					r.tellExitFile(ctx, dir, name, observe)
				}
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("cri: watching the exit files in %s: %w", dir, err)
		}
	}
}

// openExitsDir returns a file from which the events of the exits directory can be read. It also returns
// the existing files.
func openExitsDir(dir string) (watch *os.File, files []os.DirEntry, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, os.NewSyscallError("inotify_init1", err)
	}
	watch = os.NewFile(uintptr(fd), "inotify")
	if _, err = unix.InotifyAddWatch(fd, dir, exitFileEvents); err != nil {
		err = os.NewSyscallError("inotify_add_watch", err)
	} else if files, err = os.ReadDir(dir); err == nil {
		return watch, files, nil
	}
	return nil, nil, errors.Join(err, watch.Close())
}

// isTemporary reports whether conmon is still writing a file.
func isTemporary(name string) bool { return strings.Contains(name, ".") }

// newFile returns the name of the file in an event, or "" for a temporary file or a directory. It
// returns an error if this watch can report no further exits.
func newFile(e fileEvent) (name string, err error) {
	switch {
	case e.mask&unix.IN_Q_OVERFLOW != 0:
		return "", errDropped
	case e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
		return "", errors.New("the directory was removed")
	case e.mask&unix.IN_ISDIR != 0 || isTemporary(e.name):
		return "", nil
	}
	return e.name, nil
}

// maxOpenFiles returns how many files this process may open.
func maxOpenFiles() int {
	var files unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return int(min(files.Cur, 1<<20)) //nolint:gosec // small
}

// errDropped is the error of a watch after the kernel's queue of events was full.
var errDropped = errors.New("the kernel dropped events")

// withoutCode is the content of the exit file of a container in a virtual machine. For this
// content, readExitFile returns noCode.
const (
	withoutCode = "Exited"
	noCode      = -1
)

// tellExitFile reports the exit that a file records. If the file is already gone, tellExitFile
// reports nothing, because CRI-O shows the exit. For a file without a code, it reports only the
// pod, so that the pod is listed.
func (r *Runtime) tellExitFile(ctx context.Context, dir, name string, observe func(pleg.ContainerExit)) {
	code, written, err := readExitFile(filepath.Join(dir, name))
	switch {
	case err == nil && code == noCode:
		observe(pleg.ContainerExit{PodUID: r.held.podOf(name)})
	case err == nil:
		observe(pleg.ContainerExit{ContainerID: name, ExitCode: code, FinishedAt: written})
	case !errors.Is(err, fs.ErrNotExist):
		r.badObject(ctx, badSet(0).with(badExit), object{kind: containers, id: name})
	}
}

// readExitFile returns the exit code in a file, and when the file was written. If there is no file,
// the error wraps fs.ErrNotExist. If the file contains no code, the result is noCode.
func readExitFile(path string) (code int, written time.Time, err error) {
	content, written, err := readSmallFile(path, maxExitFileBytes)
	if err != nil {
		return 0, time.Time{}, err
	}
	text := strings.TrimSpace(string(content))
	if text == withoutCode {
		return noCode, written, nil
	}
	number, err := strconv.ParseInt(text, 10, 32)
	return int(number), written, err
}
