package container

import (
	"slices"
	"time"
)

// After an exit event, the kubelet starts a successor before the runtime's status shows the exit
// with its message and true reason. So the kubelet acts on the cached status, but it publishes the
// status that Published returns.

const (
	// unconfirmed is the reason of an exit that the runtime's status does not show yet.
	unconfirmed = "Unconfirmed"
	// publishAfter is how long an unconfirmed exit delays the publication of containers created
	// after it. Then GenericPLEG sends a PodSync.
	publishAfter = 5 * time.Second
)

func isUnconfirmed(s *Status) bool { return s.State == ContainerStateExited && s.Reason == unconfirmed }

// Published returns the status that the kubelet publishes. It shows a container with an unconfirmed
// exit as running, and leaves out containers that were created after the exit. After publishAfter,
// it shows the successor and leaves out the exited container.
//
// If the pod is terminal, Published shows unconfirmed exits with a reason that follows from the
// exit code.
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
