package schedule

import "k8s.io/apimachinery/pkg/types"

// Inspection returns the inspection of the pod in flight, or nil.
func (s *Scheduler) Inspection(uid types.UID) *Call {
	if p := s.pods[uid]; p != nil {
		return p.inspection
	}
	return nil
}
