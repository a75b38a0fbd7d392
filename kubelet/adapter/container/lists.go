package container

// containerLists returns the lists of containers in a status.
func containerLists(s *PodStatus) []*[]*Status {
	return []*[]*Status{&s.ContainerStatuses, &s.ActiveContainerStatuses}
}
