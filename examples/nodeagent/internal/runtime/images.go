package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Puller pulls the images of one pod. It is used by one goroutine.
type Puller struct {
	client  *Client
	backoff *flowcontrol.Backoff
	failed  map[string]time.Time // when images could not be pulled last
}

// NewPuller returns a puller that waits from first to longest after an image could not be pulled.
func (c *Client) NewPuller(first, longest time.Duration) *Puller {
	return &Puller{c, flowcontrol.NewBackOff(first, longest), map[string]time.Time{}}
}

// Ensure has a container's image pulled if its policy says so. If the image is not there then, it returns why, in the
// kubelet's words, and until when to wait if it did not try.
func (p *Puller) Ensure(ctx context.Context, c *v1.Container) (why *v1.ContainerStateWaiting, until time.Time) {
	waits := func(reason, format string, args ...any) *v1.ContainerStateWaiting {
		return &v1.ContainerStateWaiting{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	if _, err := reference.ParseNormalizedNamed(c.Image); err != nil {
		return waits("InvalidImageName",
			"Failed to apply default image tag %q: couldn't parse image name %q: %v", c.Image, c.Image, err), until
	}
	image, err := p.client.image(ctx, c.Image)
	switch {
	case err != nil:
		return waits("ImageInspectError", "%v", err), until
	case image != nil && c.ImagePullPolicy != v1.PullAlways:
		return nil, until
	case c.ImagePullPolicy == v1.PullNever:
		return waits("ErrImageNeverPull", "Container image %q is not present with pull policy of Never", c.Image), until
	}
	if last := p.failed[c.Image]; p.backoff.IsInBackOffSince(c.Image, last) {
		return waits("ImagePullBackOff", "Back-off pulling image %q", c.Image), last.Add(p.backoff.Get(c.Image))
	}
	_, err = call(ctx, pullTimeout, "pulling image "+c.Image, p.client.images.PullImage, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
	})
	if err != nil {
		p.failed[c.Image] = time.Now()
		p.backoff.Next(c.Image, time.Now())
		return waits("ErrImagePull", "%v", err), until
	}
	return nil, until
}

// image returns an image that the runtime has, nil if it has none of that name.
func (c *Client) image(ctx context.Context, name string) (*runtimeapi.Image, error) {
	r, err := call(ctx, callTimeout, "asking for image "+name, c.images.ImageStatus,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	return r.GetImage(), err
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
