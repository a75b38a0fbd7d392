// Package volumes makes the volumes of pods on the host.
package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// kinds maps the type of a hostPath to the type of file that it requires.
var kinds = map[v1.HostPathType]fs.FileMode{
	v1.HostPathDirectory: fs.ModeDir, v1.HostPathDirectoryOrCreate: fs.ModeDir, v1.HostPathFile: 0,
	v1.HostPathFileOrCreate: 0, v1.HostPathSocket: fs.ModeSocket, v1.HostPathBlockDev: fs.ModeDevice,
	v1.HostPathCharDev: fs.ModeDevice | fs.ModeCharDevice,
}

// Prepare returns the path of a volume on the host, and creates the volume if necessary. An
// emptyDir is made in the directory dir. In memory, it can grow to the given number of bytes.
func Prepare(pod *v1.Pod, vol *v1.Volume, dir string, memory int64) (path string, err error) {
	if vol.EmptyDir != nil {
		return emptyDir(pod, vol, filepath.Join(dir, vol.Name), memory)
	}
	path = vol.HostPath.Path
	kind := ptr.Deref(vol.HostPath.Type, v1.HostPathUnset)
	switch kind {
	case v1.HostPathUnset:
		return path, nil
	case v1.HostPathDirectoryOrCreate:
		err = os.MkdirAll(path, 0o755)
	case v1.HostPathFileOrCreate:
		if _, missing := os.Stat(path); missing != nil {
			err = os.WriteFile(path, nil, 0o644)
		}
	default: // the path must exist
	}
	info, missing := os.Stat(path)
	if err = errors.Join(err, missing); err == nil && info.Mode().Type() != kinds[kind] {
		err = fmt.Errorf("%s is no %s", path, kind)
	}
	return path, err
}

func emptyDir(pod *v1.Pod, vol *v1.Volume, path string, memory int64) (_ string, err error) {
	mode := fs.FileMode(0o777)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", err
	}
	if vol.EmptyDir.Medium == v1.StorageMediumMemory {
		err = mountTmpfs(path, memory)
	}
	if propagates(pod, vol) {
		err = errors.Join(err, makeShared(path))
	}
	if group := pod.Spec.SecurityContext.FSGroup; group != nil {
		mode |= fs.ModeSetgid
		err = errors.Join(err, os.Chown(path, -1, int(*group)))
	}
	return path, errors.Join(err, os.Chmod(path, mode))
}

// mountTmpfs mounts a tmpfs at a directory, unless a file system is already mounted there. A file
// in the tmpfs counts as memory of the container that wrote the file.
func mountTmpfs(dir string, size int64) error {
	var own, parent syscall.Stat_t
	if err := errors.Join(syscall.Stat(dir, &own), syscall.Stat(filepath.Dir(dir), &parent)); err != nil ||
		own.Dev != parent.Dev {
		return err
	}
	return os.NewSyscallError("mount", syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)))
}

// propagates reports whether mounts in a volume propagate between containers or to the host.
func propagates(pod *v1.Pod, vol *v1.Volume) bool {
	return slices.ContainsFunc(plan.Containers(pod), func(c *v1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
			return m.Name == vol.Name && ptr.Deref(m.MountPropagation, v1.MountPropagationNone) != v1.MountPropagationNone
		})
	})
}

// makeShared makes a directory a shared mount. Runtimes refuse mount propagation in a private
// mount, such as the root of many hosts.
func makeShared(dir string) error {
	err := syscall.Mount("", dir, "", syscall.MS_SHARED, "")
	if errors.Is(err, syscall.EINVAL) { // the directory is no mount yet
		if err = syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err == nil {
			err = syscall.Mount("", dir, "", syscall.MS_SHARED, "")
		}
	}
	return os.NewSyscallError("mount", err)
}

// Unmount unmounts the volumes in a directory.
func Unmount(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, "*")) // the pattern is valid
	for _, path := range paths {
		_ = syscall.Unmount(path, syscall.MNT_DETACH) // fails for most volumes: they are no mounts
	}
}
