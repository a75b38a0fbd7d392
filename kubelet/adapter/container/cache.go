package container

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// NewCache returns an empty PodCache that returns the kubelet's own statuses.
func NewCache() Cache { return &cache{PodCache: pleg.NewCache()} }

type cache struct{ *pleg.PodCache }

// PLEGCache returns the library's cache, which the generator writes.
func (c *cache) PLEGCache() *pleg.PodCache { return c.PodCache }

func (c *cache) Set(uid types.UID, status *PodStatus, err error, timestamp time.Time) bool {
	var converted *pleg.PodStatus
	if status != nil {
		converted = &pleg.PodStatus{ID: uid, IPs: status.IPs, Source: status}
	}
	return c.PodCache.Set(uid, converted, err, timestamp)
}

// kubeletStatus returns the kubelet's status in status.Source, with two parts of the generator's
// status:
//   - the addresses, which the generator keeps after the pod's network is gone;
//   - exits that the runtime's status does not show yet.
//
// It leaves the kubelet's TimeStamp alone: no code of the kubelet reads it.
func kubeletStatus(status *pleg.PodStatus) *PodStatus {
	source, ok := status.Source.(*PodStatus)
	if !ok { // the pod is unknown, removed, or was never inspected
		return &PodStatus{ID: status.ID}
	}
	answer := *source
	answer.IPs = status.IPs
	for _, list := range containerLists(&answer) {
		*list = withExits(*list, status.ContainerStatuses)
	}
	return &answer
}

// withExits returns the kubelet's statuses, own. If the generator knows an exit that own does not
// show, withExits returns a copy of own that shows the exit.
func withExits(own []*Status, known []*pleg.Status) []*Status {
	answer := own
	for i, s := range own {
		at := slices.IndexFunc(known, func(k *pleg.Status) bool { return k.ID.ID == s.ID.ID })
		if at < 0 || known[at].State != pleg.ContainerStateExited || s.State == ContainerStateExited {
			continue
		}
		if &answer[0] == &own[0] {
			answer = slices.Clone(own)
		}
		end := known[at]
		// If an earlier status of the runtime showed the exit, return that status.
		if seen, ok := end.Source.(*Status); ok && !end.Unconfirmed {
			answer[i] = seen
			continue
		}
		dead := *s
		dead.State, dead.ExitCode, dead.FinishedAt = ContainerStateExited, end.ExitCode, end.FinishedAt
		dead.Reason, dead.Message = unconfirmed, ""
		answer[i] = &dead
	}
	return answer
}
