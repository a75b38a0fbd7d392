package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// LogDir returns the directory that the runtime writes the logs of a pod to.
func (c *Client) LogDir(pod *v1.Pod) string {
	return filepath.Join(c.stateDir, "logs", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// mounts prepares a container's volumes and returns their mounts.
func (c *Client) mounts(pod *v1.Pod, container *v1.Container) ([]*runtimeapi.Mount, error) {
	var mounts []*runtimeapi.Mount
	for _, m := range container.VolumeMounts {
		path, err := c.volume(pod, volumeOf(pod, m))
		if err != nil {
			return nil, fmt.Errorf("preparing volume %s: %w", m.Name, err)
		}
		mounts = append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: m.MountPath, Readonly: m.ReadOnly})
	}
	return mounts, nil
}

// volumeOf returns the volume that is mounted: validation has seen that it is there.
func volumeOf(pod *v1.Pod, m v1.VolumeMount) *v1.Volume {
	i := slices.IndexFunc(pod.Spec.Volumes, func(vol v1.Volume) bool { return vol.Name == m.Name })
	return &pod.Spec.Volumes[i]
}

// kinds are the types of files that a hostPath may be of.
var kinds = map[v1.HostPathType]fs.FileMode{
	v1.HostPathDirectory: fs.ModeDir, v1.HostPathDirectoryOrCreate: fs.ModeDir, v1.HostPathFile: 0,
	v1.HostPathFileOrCreate: 0, v1.HostPathSocket: fs.ModeSocket, v1.HostPathBlockDev: fs.ModeDevice,
	v1.HostPathCharDev: fs.ModeDevice | fs.ModeCharDevice,
}

// volume returns the path of a volume on the host, and makes it if it is to be made.
func (c *Client) volume(pod *v1.Pod, vol *v1.Volume) (path string, err error) {
	if vol.EmptyDir != nil {
		path, mode := filepath.Join(c.stateDir, "pods", string(pod.UID), "volumes", vol.Name), fs.FileMode(0o777)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", err
		}
		if group := pod.Spec.SecurityContext.FSGroup; group != nil {
			mode |= fs.ModeSetgid
			err = os.Chown(path, -1, int(*group))
		}
		return path, errors.Join(err, os.Chmod(path, mode))
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
	default: // it must be there
	}
	info, missing := os.Stat(path)
	if err = errors.Join(err, missing); err == nil && info.Mode().Type() != kinds[kind] {
		err = fmt.Errorf("%s is no %s", path, kind)
	}
	return path, err
}

// RemoveLogs removes the logs of an instance of a container.
func (c *Client) RemoveLogs(pod *v1.Pod, container string, restartCount int) error {
	paths, err := filepath.Glob(filepath.Join(c.LogDir(pod), container, fmt.Sprintf("%d.log*", restartCount)))
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// RemoveDirs removes what is on disk of a pod that is gone.
func (c *Client) RemoveDirs(pod *v1.Pod) error {
	return c.Collect(func(uid types.UID) bool { return uid != pod.UID })
}

// Collect removes what is on disk of pods that are no more: an agent may have been killed as it removed them.
func (c *Client) Collect(exists func(types.UID) bool) (err error) {
	for _, dir := range []string{filepath.Join(c.stateDir, "pods"), filepath.Join(c.stateDir, "logs")} {
		entries, _ := os.ReadDir(dir) // it may not be there yet
		for _, e := range entries {   // UID, or NAMESPACE_NAME_UID; none of these has a "_" in it
			if uid := e.Name()[strings.LastIndex(e.Name(), "_")+1:]; !exists(types.UID(uid)) {
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
			}
		}
	}
	return err
}
