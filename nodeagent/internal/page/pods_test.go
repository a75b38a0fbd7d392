package page

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// If several files for one pod are refused, the pod's status contains all reasons.
func TestSeveralRefusedFiles(t *testing.T) {
	pod := func(phase v1.PodPhase, reason, message string) v1.Pod {
		pod := v1.Pod{Status: v1.PodStatus{Phase: phase, Reason: reason, Message: message}}
		pod.Name = "a"
		return pod
	}
	p := Pods{
		Running: func() *v1.PodList { return &v1.PodList{Items: []v1.Pod{pod(v1.PodRunning, "", "")}} },
		Refused: func() []v1.Pod {
			return []v1.Pod{pod(v1.PodFailed, "ManifestRefused", "x"), pod(v1.PodFailed, "ManifestRefused", "y")}
		},
	}
	if got := p.list().Items; len(got) != 1 || got[0].Status.Phase != v1.PodRunning || got[0].Status.Message != "x; y" {
		t.Errorf("%+v", got)
	}
}
