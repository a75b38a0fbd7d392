// Package images removes unused images when the disk is full.
package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// period is how often the disk is checked. The value is the kubelet's. timeout limits a check.
const period, timeout = 5 * time.Minute, 2 * time.Minute

// Limits correspond to fields of the kubelet's configuration. If the disk of the images is at least
// HighPercent full, unused images are removed until the disk is LowPercent full. The least recently
// used image is removed first. An image that has been unused for less than MinAge stays.
type Limits struct {
	HighPercent, LowPercent int
	MinAge                  time.Duration
}

// GarbageCollector removes unused images.
type GarbageCollector struct {
	Limits
	logger     klog.Logger
	images     runtimeapi.ImageServiceClient
	containers runtimeapi.RuntimeServiceClient
	// lastUsed maps an image's ID to the time when a check last found the image in use. If no check
	// has found the image in use, the time is when a check first listed the image.
	lastUsed map[string]time.Time
}

// NewGarbageCollector returns a GarbageCollector that uses a connection to the runtime.
func NewGarbageCollector(conn grpc.ClientConnInterface, limits Limits, logger klog.Logger) *GarbageCollector {
	return &GarbageCollector{Limits: limits, logger: logger, images: runtimeapi.NewImageServiceClient(conn),
		containers: runtimeapi.NewRuntimeServiceClient(conn), lastUsed: map[string]time.Time{}}
}

// Run removes images until ctx ends.
func (g *GarbageCollector) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := g.collect(ctx); err != nil {
			g.logger.Error(err, "Unused images could not be removed")
		}
	}, period)
}

func (g *GarbageCollector) collect(ctx context.Context) error {
	disk, err := g.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return fmt.Errorf("asking for the images' disk: %w", err)
	}
	images, err := g.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("listing images: %w", err)
	}
	containers, err := g.containers.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	unused := g.unused(images.GetImages(), containers.GetContainers())
	free, err := g.toFree(disk)
	for i := 0; i < len(unused) && free > 0; i++ {
		image := unused[i]
		_, failed := g.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.Id}})
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("removing image %s: %w", image.Id, failed))
			continue
		}
		free -= int64(image.Size) //nolint:gosec // it is less than 8 EiB
	}
	return err
}

// unused returns the images that may be removed, the least recently used first. It updates
// lastUsed.
func (g *GarbageCollector) unused(images []*runtimeapi.Image, containers []*runtimeapi.Container) (
	unused []*runtimeapi.Image) {
	inUse := sets.New[string]()
	for _, c := range containers {
		// It depends on the runtime which of these fields contains the ID.
		inUse.Insert(c.GetImage().GetImage(), c.GetImageRef(), c.GetImageId())
	}
	before, now := maps.Clone(g.lastUsed), time.Now()
	clear(g.lastUsed)
	for _, image := range images {
		used := inUse.HasAny(slices.Concat([]string{image.Id}, image.RepoTags, image.RepoDigests)...)
		last, isKnown := before[image.Id]
		if used || !isKnown {
			last = now
		}
		g.lastUsed[image.Id] = last
		if !used && !image.Pinned && now.Sub(last) >= g.MinAge {
			unused = append(unused, image)
		}
	}
	slices.SortFunc(unused, func(a, b *runtimeapi.Image) int { return g.lastUsed[a.Id].Compare(g.lastUsed[b.Id]) })
	return unused
}

// toFree returns how many bytes to free on the disk of the images. This disk is the first that the
// runtime reports.
func (g *GarbageCollector) toFree(disk *runtimeapi.ImageFsInfoResponse) (int64, error) {
	if len(disk.GetImageFilesystems()) == 0 {
		return 0, nil
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(disk.GetImageFilesystems()[0].GetFsId().GetMountpoint(), &s); err != nil {
		return 0, fmt.Errorf("asking how full the images' disk is: %w", err)
	}
	total, available := int64(s.Blocks)*s.Bsize, int64(s.Bavail)*s.Bsize
	if total > 0 && 100-available*100/total >= int64(g.HighPercent) {
		return total*int64(100-g.LowPercent)/100 - available, nil
	}
	return 0, nil
}
