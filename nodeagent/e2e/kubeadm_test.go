package nodeagent

import (
	"embed"
	"regexp"
	"strings"
)

// kubeadmFiles contains the static pods that kubeadm v1.37.1 writes for the advertised address
// 192.0.2.1. The commands were "kubeadm init phase control-plane all" and "kubeadm init phase etcd
// local".
//
//go:embed testdata/kubeadm
var kubeadmFiles embed.FS

// kubeadmManifests maps the names of pods to the manifests that kubeadm writes for them.
var kubeadmManifests = func() map[string]string {
	texts := map[string]string{}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		// Without the file, the agent refuses the empty manifest.
		text, _ := kubeadmFiles.ReadFile("testdata/kubeadm/" + name + ".yaml")
		texts[name] = string(text)
	}
	return texts
}()

// kubeadm returns kubeadmManifests with the given address. It puts NODE before each path of the
// host.
func kubeadm(address string) map[string]string {
	texts := map[string]string{}
	for name, text := range kubeadmManifests {
		text = strings.NewReplacer("192.0.2.1", address, "127.0.0.1", address).Replace(text)
		texts[name] = regexp.MustCompile(`(hostPath:\s+path: )/`).ReplaceAllString(text, "${1}NODE/")
	}
	return texts
}
