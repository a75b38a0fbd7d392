package nodeagent

import (
	"embed"
	"regexp"
	"strings"
)

// The static pods that kubeadm v1.37.1 writes, by "kubeadm init phase control-plane all" and "etcd
// local" with an advertised address of 192.0.2.1.
//
//go:embed testdata/kubeadm
var kubeadmFiles embed.FS

// kubeadmManifests maps the names of pods to the manifests that kubeadm writes for them.
var kubeadmManifests = func() map[string]string {
	texts := map[string]string{}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		text, _ := kubeadmFiles.ReadFile("testdata/kubeadm/" + name + ".yaml") // an empty manifest would be refused
		texts[name] = string(text)
	}
	return texts
}()

// kubeadm returns kubeadmManifests, changed for a machine with this address and its own files.
func kubeadm(address string) map[string]string {
	texts := map[string]string{}
	for name, text := range kubeadmManifests {
		text = strings.NewReplacer("192.0.2.1", address, "127.0.0.1", address).Replace(text)
		texts[name] = regexp.MustCompile(`(hostPath:\s+path: )/`).ReplaceAllString(text, "${1}NODE/")
	}
	return texts
}
