package container

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Get returns the kubelet's status of a pod, and the error of its last inspection.
func (c *cache) Get(uid types.UID) (*PodStatus, error) {
	status, err := c.PodCache.Get(uid)
	return kubeletStatus(status), err
}

// GetNewerThan is like Get, but waits until the pod was observed after minTime.
func (c *cache) GetNewerThan(uid types.UID, minTime time.Time) (*PodStatus, error) {
	status, err := c.PodCache.GetNewerThan(uid, minTime)
	return kubeletStatus(status), err
}
