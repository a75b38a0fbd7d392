package cri_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

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
		"0::/../system.slice/docker-" + id + ".scope":                                                          "",
		slice + "cri-containerd-" + id[1:] + ".scope":                                                          "",
		slice + "cri-containerd-" + strings.ToUpper(id) + ".scope":                                             "",
		"0::" + slice + "cri-containerd-" + id + ".scope (deleted)":                                            id,
		"0::" + slice + "cri-containerd-" + id + ".scope\n":                                                    id,
		"0::" + slice + "crio-" + id + ".scope (deleted)\n":                                                    id,
		"4:memory:/kubepods/pod5d4f/" + id + " (deleted)":                                                      id,
		// The sandbox of a kata pod.
		"/kubepods/pod5d4f/kata_" + id:                 id,
		slice + "cri-containerd-kata_" + id + ".scope": id,
		"/kata_overhead/" + id:                         "",
		// Containers in pods without a kubelet.
		"0::/k8s.io/" + id: id,
		"0::/system.slice/cri-containerd-" + id + ".scope": id,
		"0::/system.slice/crio-" + id + ".scope":           id,
		"0::/system.slice/crio-conmon-" + id + ".scope":    "",
		// A container of the reader's own pod, in a private cgroup namespace.
		"0::/../" + id:                                          id,
		"0::/../crio-" + id + ".scope":                          id,
		"0::/../../crio-" + id + ".scope/container":             id, // from crun
		"0::/../crio-conmon-" + id + ".scope":                   "",
		"0::/../crio-" + id + ".scope/crio-" + other + ".scope": id,
		// Containers of other pods in a private cgroup namespace: in the same QoS class, in another
		// class, and in the class without a folder.
		"0::/../../pod5d4f/" + id:                                id,
		"4:memory:/../../pod5d4f/" + id + " (deleted)\n":         id,
		"0::/../../kubepods-pod5d4f.slice/crio-" + id + ".scope": id,
		"0::/../../../burstable/pod5d4f/" + id:                   id,
		"0::/../../besteffort/pod5d4f/" + id:                     id,
		"0::/../../../pod5d4f/" + id:                             id,
		"0::/../../pod5d4f/" + id + "/kubepods/pod77/" + other:   id,
		// The reader's own container, and processes in no pod.
		"0::/":           "",
		"0::/init.scope": "",
		"0::/../../../../system.slice/docker-" + id + ".scope": "",
		"0::/../../../podman/" + id:                            "",
		"0::/../../../../podruntime.slice/" + id:               "",
		"0::/pod5d4f/" + id:                                    "",
		// Paths that a user can create.
		"/user.slice/user-7.slice/user@7.service/kubepods/pod5d4f/" + id:                   "",
		"/user.slice/user-7.slice/user@7.service/app.slice/crio-" + id + ".scope":          "",
		"0::/../../../../user.slice/user-7.slice/user@7.service/kubepods.slice/" + id:      "",
		"0::/../user@7.service/pod5d4f/" + id:                                              "",
		slice + "crio-" + id + ".scope/user.slice/user@7.service/crio-" + other + ".scope": id,
		"": "",
	} {
		if got, ok := cri.ContainerIDFromCgroup(path); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", path, got, ok)
		}
	}
}

func TestPodUIDFromCgroup(t *testing.T) {
	const uid, static = "5d4f0c1e-7b1a-4b53-9c55-0a1b2c3d4e5f", "a3f1c3d5e7f90123456789abcdef0123"
	const slice = "kubepods-burstable-pod5d4f0c1e_7b1a_4b53_9c55_0a1b2c3d4e5f.slice"
	id := strings.Repeat("3f2a", 16)
	for path, want := range map[string]types.UID{
		"/kubepods.slice/kubepods-burstable.slice/" + slice + "/cri-containerd-" + id + ".scope":    uid,
		"0::/kubepods.slice/kubepods-burstable.slice/" + slice + "/crio-" + id + ".scope/container": uid,
		"0::/kubepods.slice/kubepods-burstable.slice/" + slice + "\n":                               uid,
		"/kubepods/besteffort/pod" + uid + "/" + id:                                                 uid,
		"4:memory:/kubepods/pod" + uid:                                                              uid,
		"/docker/" + id + "/kubelet/kubepods/burstable/pod" + uid + "/" + id:                        uid,
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + static + ".slice/x.scope":    static,
		"/system.slice/containerd.service/" + slice + ":cri-containerd:" + id:                       uid,
		"/kubepods.slice/kubepods-burstable.slice":                                                  "",
		"/system.slice/kubelet.service":                                                             "",
		"/user.slice/pod" + uid:                                                                     "",
		"/kubepods/pod":                                                                             "",
		// A path of the cgroupfs driver with systemd's underscores.
		"/kubepods/pod" + strings.ReplaceAll(uid, "-", "_") + "/" + id: uid,
		"/kubepods/pod" + uid + "/kata_" + id:                          uid,
		"0::/k8s.io/" + id:                                             "",
		// Paths in a private cgroup namespace.
		"0::/../../pod" + uid + "/" + id:                                            uid,
		"0::/../../../burstable/pod" + uid + "/" + id + "\n":                        uid,
		"0::/../../../pod" + static + "/" + id:                                      static,
		"0::/../../" + slice + "/crio-" + id + ".scope":                             uid,
		"0::/../../../kubepods-burstable.slice/" + slice + "/crio-" + id + ".scope": uid,
		"0::/../../pod" + uid + "/" + id + "/kubepods/pod" + static + "/" + id:      uid,
		"0::/../" + id:                 "",
		"0::/../crio-" + id + ".scope": "",
		"0::/../crio-" + id + ".scope/kubepods/pod" + uid + "/" + id:            "", // a node in a container
		"0::/../../../podman/" + id:                                             "",
		"0::/../../../../podruntime.slice":                                      "",
		"0::/../../../../system.slice/pod" + uid:                                "",
		"0::/pod" + uid:                                                         "",
		"/user.slice/user-7.slice/user@7.service/kubepods/pod" + uid + "/" + id: "",
		"0::/../user@7.service/pod" + uid:                                       "",
		"":                                                                      "",
	} {
		if got, ok := cri.PodUIDFromCgroup(path); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", path, got, ok)
		}
	}
}
