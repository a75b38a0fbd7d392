package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
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

// kinds maps the type of a hostPath to the type of file that it requires.
var kinds = map[v1.HostPathType]fs.FileMode{
	v1.HostPathDirectory: fs.ModeDir, v1.HostPathDirectoryOrCreate: fs.ModeDir, v1.HostPathFile: 0,
	v1.HostPathFileOrCreate: 0, v1.HostPathSocket: fs.ModeSocket, v1.HostPathBlockDev: fs.ModeDevice,
	v1.HostPathCharDev: fs.ModeDevice | fs.ModeCharDevice,
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

// volume returns the path of a volume on the host, and creates the volume if necessary.
func (c *Client) volume(pod *v1.Pod, vol *v1.Volume) (path string, err error) {
	if vol.EmptyDir != nil {
		path, mode := filepath.Join(c.stateDir, "pods", string(pod.UID), "volumes", vol.Name), fs.FileMode(0o777)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return "", err
		}
		if vol.EmptyDir.Medium == v1.StorageMediumMemory {
			err = inMemory(path)
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

// inMemory mounts a tmpfs at a directory, unless a file system is already mounted there. A file in
// the tmpfs counts as memory of the container that wrote the file.
func inMemory(dir string) error {
	var own, parent syscall.Stat_t
	if err := errors.Join(syscall.Stat(dir, &own), syscall.Stat(filepath.Dir(dir), &parent)); err != nil ||
		own.Dev != parent.Dev {
		return err
	}
	return os.NewSyscallError("mount",
		syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", nodeMemory())))
}

// propagates reports whether mounts in a volume propagate between containers or to the host.
func propagates(pod *v1.Pod, vol *v1.Volume) bool {
	return slices.ContainsFunc(plan.Containers(pod), func(c *v1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
			return m.Name == vol.Name && propagations[ptr.Deref(m.MountPropagation, "")] != 0
		})
	})
}

// makeShared makes a directory a shared mount. Runtimes refuse mount propagation in a private
// mount, such as the root of many hosts. Collect unmounts the directory.
func makeShared(dir string) error {
	err := syscall.Mount("", dir, "", syscall.MS_SHARED, "")
	if errors.Is(err, syscall.EINVAL) { // the directory is no mount yet
		if err = syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err == nil {
			err = syscall.Mount("", dir, "", syscall.MS_SHARED, "")
		}
	}
	return os.NewSyscallError("mount", err)
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
				volumes, _ := filepath.Glob(filepath.Join(dir, e.Name(), "volumes", "*")) // the pattern is valid
				for _, volume := range volumes {
					_ = syscall.Unmount(volume, syscall.MNT_DETACH) // fails for most volumes: they are no mounts
				}
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
			}
		}
	}
	return err
}

// Limits correspond to fields of the kubelet's configuration.
type Limits struct {
	// When a log reaches LogSize, the container continues in a new log file. LogFiles limits the
	// files of a container's log, including the present file.
	LogSize  resource.QuantityValue
	LogFiles int
	// If the disk of the images is at least ImagesHigh percent full, unused images are removed
	// until the disk is ImagesLow percent full. The least recently used image is removed first. An
	// image that has been unused for less than ImageAge stays.
	ImagesHigh, ImagesLow int
	ImageAge              time.Duration
}

// logPeriod and imagePeriod are how often logs and images are checked, in seconds. The values are
// the kubelet's.
const logPeriod, imagePeriod = 10, 300

// KeepLimits enforces limits until ctx ends. pods returns all pods with their statuses.
func (c *Client) KeepLimits(ctx context.Context, limits Limits, pods func() *v1.PodList, logger klog.Logger) {
	images, round := map[string]time.Time{}, 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := c.rotateLogs(ctx, limits, pods().Items)
		if round%(imagePeriod/logPeriod) == 0 {
			err = errors.Join(err, c.collectImages(ctx, limits, images))
		}
		if round++; err != nil {
			logger.Error(err, "Limits of logs and images are not kept")
		}
	}, logPeriod*time.Second)
}

func (c *Client) rotateLogs(ctx context.Context, limits Limits, pods []v1.Pod) (err error) {
	for i := range pods {
		for _, s := range slices.Concat(pods[i].Status.InitContainerStatuses, pods[i].Status.ContainerStatuses) {
			path := filepath.Join(c.LogDir(&pods[i]), s.Name, fmt.Sprint(s.RestartCount)+".log")
			info, missing := os.Stat(path)
			if s.State.Running != nil && missing == nil && info.Size() >= limits.LogSize.Value() {
				_, id, _ := strings.Cut(s.ContainerID, "://")
				err = errors.Join(err, c.rotate(ctx, id, path, limits.LogFiles))
			}
		}
	}
	return err
}

func (c *Client) rotate(ctx context.Context, id, path string, maxFiles int) error {
	rotated := path + time.Now().Format(".20060102-150405")
	if err := os.Rename(path, rotated); err != nil {
		return err
	}
	_, err := call(ctx, callTimeout, "reopening the log of container "+id, c.cri.ReopenContainerLog,
		&runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	if err != nil {
		return errors.Join(err, os.Rename(rotated, path)) // the container still writes to the renamed file
	}
	older, err := filepath.Glob(path + ".*") // the oldest first
	for ; len(older) >= maxFiles; older = older[1:] {
		err = errors.Join(err, os.Remove(older[0]))
	}
	return err
}

// collectImages removes unused images if the disk is too full. known maps an image's ID to the time
// when a call last found the image in use. If no call has found the image in use, the time is when
// a call first listed the image. Each call updates known.
func (c *Client) collectImages(ctx context.Context, limits Limits, known map[string]time.Time) error {
	disk, err1 := call(ctx, callTimeout, "asking for the images' disk", c.images.ImageFsInfo,
		&runtimeapi.ImageFsInfoRequest{})
	images, err2 := call(ctx, callTimeout, "listing images", c.images.ListImages, &runtimeapi.ListImagesRequest{})
	containers, err3 := call(ctx, callTimeout, "listing containers", c.cri.ListContainers,
		&runtimeapi.ListContainersRequest{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	inUse := sets.New[string]()
	for _, ctr := range containers.GetContainers() {
		// It depends on the runtime which of these fields contains the ID.
		inUse.Insert(ctr.GetImage().GetImage(), ctr.GetImageRef(), ctr.GetImageId())
	}
	var unused []*runtimeapi.Image
	before, now := maps.Clone(known), time.Now()
	clear(known)
	for _, image := range images.GetImages() {
		used := inUse.HasAny(slices.Concat([]string{image.Id}, image.RepoTags, image.RepoDigests)...)
		last, isKnown := before[image.Id]
		if used || !isKnown {
			last = now
		}
		known[image.Id] = last
		if !used && !image.Pinned && now.Sub(last) >= limits.ImageAge {
			unused = append(unused, image)
		}
	}
	free, err := toFree(disk, limits)
	slices.SortFunc(unused, func(a, b *runtimeapi.Image) int { return known[a.Id].Compare(known[b.Id]) })
	for i := 0; i < len(unused) && free > 0; i++ {
		image := unused[i]
		_, failed := call(ctx, callTimeout, "removing image "+image.Id, c.images.RemoveImage,
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.Id}})
		if err = errors.Join(err, failed); failed == nil {
			free -= int64(image.Size)
		}
	}
	return err
}

// toFree returns how many bytes to free on the disk of the images. This disk is the first that the
// runtime reports.
func toFree(disk *runtimeapi.ImageFsInfoResponse, limits Limits) (int64, error) {
	if len(disk.GetImageFilesystems()) == 0 {
		return 0, nil
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(disk.GetImageFilesystems()[0].GetFsId().GetMountpoint(), &s); err != nil {
		return 0, fmt.Errorf("asking how full the images' disk is: %w", err)
	}
	total, available := int64(s.Blocks)*s.Bsize, int64(s.Bavail)*s.Bsize
	if total > 0 && 100-available*100/total >= int64(limits.ImagesHigh) {
		return total*int64(100-limits.ImagesLow)/100 - available, nil
	}
	return 0, nil
}
