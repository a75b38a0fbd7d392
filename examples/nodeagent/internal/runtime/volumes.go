package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

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

// volume returns the path of a volume on the host, and makes it if it is to be made.
func (c *Client) volume(pod *v1.Pod, vol *v1.Volume) (path string, err error) {
	if vol.EmptyDir != nil {
		path = filepath.Join(c.PodDir(pod), "volumes", vol.Name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", err
		}
		return path, os.Chmod(path, 0o777) // whoever the container runs as
	}
	path = vol.HostPath.Path
	switch kind := ptr.Deref(vol.HostPath.Type, v1.HostPathUnset); kind {
	case v1.HostPathUnset:
		return path, nil
	case v1.HostPathDirectoryOrCreate:
		return path, os.MkdirAll(path, 0o755)
	default:
		info, err := os.Stat(path)
		if err == nil && info.IsDir() != (kind == v1.HostPathDirectory) {
			err = fmt.Errorf("%s is no %s", path, kind)
		}
		return path, err
	}
}

// RemoveDirs removes what is on disk of a pod that is gone.
func (c *Client) RemoveDirs(pod *v1.Pod) error {
	return errors.Join(os.RemoveAll(c.PodDir(pod)), os.RemoveAll(c.LogDir(pod)))
}
