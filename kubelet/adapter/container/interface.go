package container

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Cache is the kubelet's interface of the pod status cache. The methods that write are for the
// kubelet's tests and its fake cache. In a kubelet with this library, only the generator writes.
type Cache interface {
	ROCache
	Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) bool
	SetObservedTime(uid types.UID, timestamp time.Time)
	Delete(uid types.UID)
	UpdateTime(timestamp time.Time)
}

// ROCache contains the methods of Cache that read.
type ROCache interface {
	Get(ctx context.Context, uid types.UID) (*PodStatus, error)
	GetNewerThan(ctx context.Context, uid types.UID, minTime time.Time) (*PodStatus, error)
}
