package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/volumes"
)

// LogDir returns the directory that the runtime writes the logs of a pod to.
func (c *Client) LogDir(pod *v1.Pod) string {
	return filepath.Join(c.stateDir, "logs", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// volumeOf returns the volume of a mount. Validation has checked that the volume exists.
func volumeOf(pod *v1.Pod, m v1.VolumeMount) *v1.Volume {
	i := slices.IndexFunc(pod.Spec.Volumes, func(vol v1.Volume) bool { return vol.Name == m.Name })
	return &pod.Spec.Volumes[i]
}

// volume returns the path of a volume on the host, and creates the volume if necessary.
func (c *Client) volume(pod *v1.Pod, vol *v1.Volume) (path string, err error) {
	return volumes.Prepare(pod, vol, filepath.Join(c.stateDir, "pods", string(pod.UID), "volumes"), nodeMemory())
}

// PrepareVolumes creates the volumes that a pod's containers mount. It returns an error if a
// container cannot mount a volume.
func (c *Client) PrepareVolumes(pod *v1.Pod) (err error) {
	for _, container := range plan.Containers(pod) {
		_, failed := c.mounts(pod, container)
		err = errors.Join(err, failed)
	}
	return err
}

const hostsPath = "/etc/hosts"

// hosts writes the hosts file of a pod in the kubelet's format, and returns the file's path.
// pod.Status must be set.
func (c *Client) hosts(pod *v1.Pod) (path string, err error) {
	text := "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	for _, ip := range pod.Status.PodIPs {
		text += ip.IP + "\t" + plan.Hostname(pod) + "\n"
	}
	if pod.Spec.HostNetwork {
		own, _ := os.ReadFile(hostsPath) // the file may be missing on a host
		text = "# Kubernetes-managed hosts file (host network).\n" + string(own)
	}
	if len(pod.Spec.HostAliases) > 0 {
		text += "\n# Entries added by HostAliases.\n"
	}
	for _, alias := range pod.Spec.HostAliases {
		text += alias.IP + "\t" + strings.Join(alias.Hostnames, "\t") + "\n"
	}
	path = filepath.Join(c.stateDir, "pods", string(pod.UID), "etc-hosts")
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	return path, errors.Join(err, os.WriteFile(path, []byte(text), 0o644), os.Chmod(path, 0o644))
}

// RemoveLogs removes the logs of one instance of a container.
func (c *Client) RemoveLogs(pod *v1.Pod, container string, restartCount int) error {
	paths, err := filepath.Glob(filepath.Join(c.LogDir(pod), container, fmt.Sprintf("%d.log*", restartCount)))
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// Collect removes the volumes and logs of pods that no longer exist. An agent that is killed during
// the removal of a pod leaves such files.
func (c *Client) Collect(exists func(types.UID) bool) (err error) {
	for _, dir := range []string{filepath.Join(c.stateDir, "pods"), filepath.Join(c.stateDir, "logs")} {
		entries, _ := os.ReadDir(dir) // the directory may not exist yet
		for _, e := range entries {   // UID or NAMESPACE_NAME_UID; no part contains "_"
			if uid := e.Name()[strings.LastIndex(e.Name(), "_")+1:]; !exists(types.UID(uid)) {
				of := filepath.Join(dir, e.Name())
				volumes.Unmount(filepath.Join(of, "volumes"))
				err = errors.Join(err, os.RemoveAll(of))
			}
		}
	}
	return err
}
