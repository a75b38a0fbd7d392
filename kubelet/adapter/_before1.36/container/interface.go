package container

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Cache is the kubelet's interface of the pod status cache. The methods that write are for the
// kubelet's tests and its fake cache. In a kubelet with this library, only the generator writes.
type Cache interface {
	Get(uid types.UID) (*PodStatus, error)
	GetNewerThan(uid types.UID, minTime time.Time) (*PodStatus, error)
	Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) bool
	Delete(uid types.UID)
	UpdateTime(timestamp time.Time)
}
