package cri_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func TestConformance(t *testing.T) {
	for name, model := range map[string]criserver.Model{
		"containerd 2.4": criserver.Containerd2,
		"containerd 1.7": criserver.Containerd17,
		"containerd 1.6": criserver.Containerd16,
		"CRI-O":          criserver.CRIO,
		"CRI-O, quiet":   criserver.CRIOWithoutEvents,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := criserver.Start(criserver.WithModel(model))
			must(t, err)
			t.Cleanup(s.Stop)
			uids := []types.UID{"uid-1", "uid-2", "uid-3"}
			for _, uid := range uids {
				sandbox := s.RunPod(criserver.PodConfig{UID: uid})
				must(t, s.ExitContainer(runContainer(t, s, sandbox, "init"), 0, ""))
				runContainer(t, s, sandbox, "app")
			}
			if err := plegtest.TestRuntime(connect(t, s), uids...); err != nil {
				t.Error(err)
			}
			if err := plegtest.TestRuntime(connect(t, s, cri.WithPlainLists()), uids...); err != nil {
				t.Error(err)
			}
			err = plegtest.TestCallReporter(connect(t, s), func(container string) (heal func()) {
				return s.Block("ContainerStatus", container)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
