package container

import (
	"slices"
	"time"
)

// An exit event starts the successor of a container before the runtime's status shows the exit with
// its message and its true reason. So the kubelet acts on what the cache returns, and publishes what
// Published makes of that.

const (
	// unconfirmed is the reason of an exit that the runtime's status does not show yet.
	unconfirmed = "Unconfirmed"
	// publishAfter is for how long an unconfirmed exit keeps what was created after it from being
	// published. When it has passed, GenericPLEG has the pod synced.
	publishAfter = 5 * time.Second
)

func isUnconfirmed(s *Status) bool { return s.State == ContainerStateExited && s.Reason == unconfirmed }

// Published returns the status of a pod as it is to be published: as it was before an exit that the
// runtime's status does not show yet. The container runs, and what was created since is not there. If
// the runtime takes longer than publishAfter, the successor is there in place of the container.
//
// A pod that is terminal has ended: its unconfirmed exits are ends, by their codes.
func Published(status *PodStatus, podIsTerminal bool) *PodStatus {
	if !slices.ContainsFunc(status.ContainerStatuses, isUnconfirmed) {
		return status
	}
	published := *status
	for _, list := range containerLists(&published) {
		*list = publishedOf(*list, status.ContainerStatuses, podIsTerminal)
	}
	return &published
}

func publishedOf(list, all []*Status, podIsTerminal bool) (published []*Status) {
	for _, s := range list {
		hides := func(exit *Status) bool {
			return isUnconfirmed(exit) && s.CreatedAt.After(exit.FinishedAt) && time.Since(exit.FinishedAt) < publishAfter
		}
		isSuccessor := func(other *Status) bool {
			return other.Name == s.Name && other.CreatedAt.After(s.CreatedAt) && time.Since(s.FinishedAt) >= publishAfter
		}
		shown := *s
		switch {
		case podIsTerminal && isUnconfirmed(s):
			shown.Reason = "Completed"
			if s.ExitCode != 0 {
				shown.Reason = "Error"
			}
		case podIsTerminal:
		case slices.ContainsFunc(all, hides), isUnconfirmed(s) && slices.ContainsFunc(all, isSuccessor):
			continue
		case isUnconfirmed(s):
			shown.State, shown.ExitCode, shown.FinishedAt, shown.Reason = ContainerStateRunning, 0, time.Time{}, ""
		}
		published = append(published, &shown)
	}
	return published
}
