package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
func (c *Client) KeepLimits(ctx context.Context, limits Limits, pods func() []v1.Pod, logger klog.Logger) {
	images, round := map[string]time.Time{}, 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := c.rotateLogs(ctx, limits, pods())
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

// RemoveLogs removes the logs of an instance of a container.
func (c *Client) RemoveLogs(pod *v1.Pod, container string, restartCount int) error {
	paths, err := filepath.Glob(filepath.Join(c.LogDir(pod), container, fmt.Sprintf("%d.log*", restartCount)))
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
