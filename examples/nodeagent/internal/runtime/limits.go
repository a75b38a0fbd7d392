package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Limits are those of the kubelet's configuration.
type Limits struct {
	// The log of a container begins another file at LogSize, and has LogFiles, the present one included.
	LogSize  resource.QuantityValue
	LogFiles int
	// When the disk with the images is ImagesHigh percent full, those that no container uses go, the longest unused
	// first, until it is ImagesLow percent full. One that has been unused for less than ImageAge stays.
	ImagesHigh, ImagesLow int
	ImageAge              time.Duration
}

// The seconds after which logs and images are looked at are the kubelet's.
const logPeriod, imagePeriod = 10, 300

// KeepLimits keeps limits until ctx ends. pods returns the pods with their statuses.
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
		return errors.Join(err, os.Rename(rotated, path)) // into which the container still writes
	}
	older, err := filepath.Glob(path + ".*") // from the oldest on
	for ; len(older) >= maxFiles; older = older[1:] {
		err = errors.Join(err, os.Remove(older[0]))
	}
	return err
}

// collectImages looks which images are in use, and removes others if there are too many. known are those of the last
// time by ID, with the time at which they were in use last, or else were new.
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
		inUse.Insert(ctr.GetImage().GetImage(), ctr.GetImageRef(), ctr.GetImageId()) // each runtime has its ID somewhere
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
	for _, image := range unused {
		if free <= 0 {
			break
		}
		_, failed := call(ctx, callTimeout, "removing image "+image.Id, c.images.RemoveImage,
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.Id}})
		if err = errors.Join(err, failed); failed == nil {
			free -= int64(image.Size)
		}
	}
	return err
}

// toFree returns how many bytes are to be freed on the disk of the images: the first that the runtime names.
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
