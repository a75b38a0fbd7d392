// Package images sees to it that the images of containers are there.
package images

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// Puller pulls the images of one pod. It is used by one goroutine.
type Puller struct {
	runtime *runtime.Client
	backoff *flowcontrol.Backoff
	failed  map[string]time.Time // when images could not be pulled last
}

// NewPuller returns a puller that waits from first to longest after an image could not be pulled.
func NewPuller(client *runtime.Client, first, longest time.Duration) *Puller {
	return &Puller{client, flowcontrol.NewBackOff(first, longest), map[string]time.Time{}}
}

// Ensure has a container's image pulled if its policy says so. If the image is not there then, it returns why, in the
// kubelet's words, and until when to wait if it did not try.
func (p *Puller) Ensure(ctx context.Context, c *v1.Container) (why *v1.ContainerStateWaiting, until time.Time,
	err error) {
	waits := func(reason, format string, args ...any) *v1.ContainerStateWaiting {
		return &v1.ContainerStateWaiting{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	failed := func(w *v1.ContainerStateWaiting) (*v1.ContainerStateWaiting, time.Time, error) {
		return w, until, errors.New(w.Message)
	}
	if _, err := reference.ParseNormalizedNamed(c.Image); err != nil {
		return failed(waits("InvalidImageName",
			"Failed to apply default image tag %q: couldn't parse image name %q: %v", c.Image, c.Image, err))
	}
	present, err := p.runtime.ImagePresent(ctx, c.Image)
	switch {
	case err != nil:
		return failed(waits("ImageInspectError", "%v", err))
	case present && c.ImagePullPolicy != v1.PullAlways:
		return nil, until, nil
	case c.ImagePullPolicy == v1.PullNever:
		return failed(waits("ErrImageNeverPull", "Container image %q is not present with pull policy of Never", c.Image))
	}
	if last := p.failed[c.Image]; p.backoff.IsInBackOffSince(c.Image, last) {
		return waits("ImagePullBackOff", "Back-off pulling image %q", c.Image), last.Add(p.backoff.Get(c.Image)), nil
	}
	if err := p.runtime.PullImage(ctx, c.Image); err != nil {
		p.failed[c.Image] = time.Now()
		p.backoff.Next(c.Image, time.Now())
		return failed(waits("ErrImagePull", "%v", err))
	}
	return nil, until, nil
}
