// Package logs rotates the logs of containers.
package logs

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
	"k8s.io/klog/v2"
)

// period is how often the sizes of logs are checked. The value is the kubelet's.
const period = 10 * time.Second

// Limits correspond to fields of the kubelet's configuration. When a log reaches MaxSize, the
// container continues in a new file. MaxFiles limits the files of a container's log, including the
// present file.
type Limits struct {
	MaxSize  resource.QuantityValue
	MaxFiles int
}

// Manager rotates logs. All fields must be set.
type Manager struct {
	Limits
	// Pods returns all pods with their statuses. Dir returns the directory of a pod's logs.
	Pods func() *v1.PodList
	Dir  func(*v1.Pod) string
	// Reopen makes the container with the given ID continue in a new file.
	Reopen func(ctx context.Context, id string) error
	Logger klog.Logger
}

// Run rotates logs until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := m.rotateAll(ctx); err != nil {
			m.Logger.Error(err, "Some logs could not be rotated")
		}
	}, period)
}

func (m *Manager) rotateAll(ctx context.Context) (err error) {
	pods := m.Pods().Items
	for i := range pods {
		for _, s := range slices.Concat(pods[i].Status.InitContainerStatuses, pods[i].Status.ContainerStatuses) {
			path := filepath.Join(m.Dir(&pods[i]), s.Name, fmt.Sprint(s.RestartCount)+".log")
			info, missing := os.Stat(path)
			if s.State.Running != nil && missing == nil && info.Size() >= m.MaxSize.Value() {
				_, id, _ := strings.Cut(s.ContainerID, "://")
				err = errors.Join(err, m.rotate(ctx, id, path))
			}
		}
	}
	return err
}

func (m *Manager) rotate(ctx context.Context, id, path string) error {
	rotated := path + time.Now().Format(".20060102-150405")
	if err := os.Rename(path, rotated); err != nil {
		return err
	}
	if err := m.Reopen(ctx, id); err != nil {
		return errors.Join(err, os.Rename(rotated, path)) // the container still writes to the renamed file
	}
	older, err := filepath.Glob(path + ".*") // the oldest first
	for ; len(older) >= m.MaxFiles; older = older[1:] {
		err = errors.Join(err, os.Remove(older[0]))
	}
	return err
}
