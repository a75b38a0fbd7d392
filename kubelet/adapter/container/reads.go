package container

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Get returns the kubelet's status of a pod, and the error of its last inspection.
func (c *cache) Get(_ context.Context, uid types.UID) (*PodStatus, error) {
	status, err := c.PodCache.Get(uid)
	return kubeletStatus(status), err
}

// GetNewerThan is like Get, but waits until the pod was observed after minTime. As in the released
// kubelet, the wait does not end with the context: pod workers would report that as a failure.
func (c *cache) GetNewerThan(_ context.Context, uid types.UID, minTime time.Time) (*PodStatus, error) {
	status, err := c.PodCache.GetNewerThan(uid, minTime)
	return kubeletStatus(status), err
}
