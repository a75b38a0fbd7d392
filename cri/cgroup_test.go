package cri_test

import (
	"strings"
	"testing"

	"github.com/kubepleg/pleg/cri"
)

func TestContainerIDFromCgroup(t *testing.T) {
	id, other := strings.Repeat("3f2a", 16), strings.Repeat("0b1c", 16)
	const slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5d4f0000_1111.slice/"
	for path, want := range map[string]string{
		slice + "cri-containerd-" + id + ".scope":                                                              id,
		"0::" + slice + "crio-" + id + ".scope":                                                                id,
		"0::" + slice + "crio-" + id + ".scope/container":                                                      id,
		slice + "docker-" + id + ".scope":                                                                      id,
		slice + "cri-containerd-" + id + ".scope/system.slice/docker-" + other + ".scope":                      id,
		"/kubepods/besteffort/pod5d4f/" + id:                                                                   id,
		"4:memory:/kubepods/pod5d4f/" + id + "/init":                                                           id,
		"/docker/" + other + "/kubelet/kubepods/burstable/pod5d4f/" + id:                                       id,
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod5d4f.slice/cri-containerd-" + id + ".scope": id,
		"/system.slice/containerd.service/kubepods-burstable-pod5d4f.slice:cri-containerd:" + id:               id,
		"/system.slice/containerd.service/kubepods-pod5d4f.slice/x:cri-containerd:" + id:                       id,
		slice + "crio-conmon-" + id + ".scope":                                                                 "",
		slice:                                                                                                  "",
		"/user.slice/docker-" + id + ".scope":                                                                  "",
		"0::/../" + id:                                                                                         "",
		slice + "cri-containerd-" + id[1:] + ".scope":                                                          "",
		slice + "cri-containerd-" + strings.ToUpper(id) + ".scope":                                             "",
		"0::" + slice + "cri-containerd-" + id + ".scope (deleted)":                                            id,
		"0::" + slice + "cri-containerd-" + id + ".scope\n":                                                    id,
		"0::" + slice + "crio-" + id + ".scope (deleted)\n":                                                    id,
		"4:memory:/kubepods/pod5d4f/" + id + " (deleted)":                                                      id,
		"": "",
	} {
		if got, ok := cri.ContainerIDFromCgroup(path); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", path, got, ok)
		}
	}
}
