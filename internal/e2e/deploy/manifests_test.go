package deploy

import (
	"debug/elf"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// sockets are the manifests, and where the runtime of each has its socket.
var sockets = map[string]string{
	"daemonset.yaml":     "/run/containerd/containerd.sock",
	"daemonset-k3s.yaml": "/run/k3s/containerd/containerd.sock",
}

func manifest(t *testing.T, name string) *Manifest {
	t.Helper()
	m, err := ReadManifest(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func each(t *testing.T, f func(t *testing.T, socket string, m *Manifest)) {
	files, err := filepath.Glob(filepath.Join(Root(), "deploy", "kubernetes", "*"))
	if err != nil || len(files) != len(sockets) {
		t.Fatalf("%v, %v: want %v", files, err, sockets)
	}
	for name, socket := range sockets {
		t.Run(name, func(t *testing.T) { f(t, socket, manifest(t, name)) })
	}
}

// claim fails the test if a claim about a manifest does not hold.
func claim(t *testing.T, holds bool, what string) {
	t.Helper()
	if !holds {
		t.Error("not so: " + what)
	}
}

func TestNoPrivileges(t *testing.T) {
	each(t, func(t *testing.T, _ string, m *Manifest) {
		pod := m.DaemonSet.Spec.Template.Spec
		isFalse := func(b *bool) bool { return b != nil && !*b }
		claim(t, isFalse(pod.AutomountServiceAccountToken), "no service account token is mounted")
		claim(t, pod.ServiceAccountName == "", "it has no service account of its own")
		claim(t, !pod.HostNetwork && !pod.HostPID && !pod.HostIPC, "it shares no namespace with the node")
		claim(t, pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
			"the runtime's seccomp profile applies")
		claim(t, len(pod.InitContainers) == 0 && len(pod.Containers) == 1, "it has one container")
		c := pod.Containers[0]
		s := c.SecurityContext
		claim(t, s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem, "its root file system is read-only")
		claim(t, isFalse(s.AllowPrivilegeEscalation) && isFalse(s.Privileged), "it has and gains no privileges")
		claim(t, reflect.DeepEqual(s.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}),
			"it has no capability")
		claim(t, s.SeccompProfile == nil && s.RunAsUser == nil, "the pod's security context applies")
		claim(t, m.Namespace.Name == m.DaemonSet.Namespace, "its namespace is the one in the file")
		claim(t, m.Namespace.Labels["pod-security.kubernetes.io/enforce"] == "privileged",
			"pod security admission lets its hostPath pass")
	})
}

// A socket that is mounted as a file is the old one after a restart of the runtime;
// TestRestartOfRuntime in live shows both.
func TestDirectoryOfTheSocketIsMounted(t *testing.T) {
	each(t, func(t *testing.T, socket string, m *Manifest) {
		pod := m.DaemonSet.Spec.Template.Spec
		c := pod.Containers[0]
		dir := filepath.Dir(socket)
		claim(t, len(pod.Volumes) == 1 && len(c.VolumeMounts) == 1, "it has one volume")
		v, mount := pod.Volumes[0], c.VolumeMounts[0]
		claim(t, v.HostPath != nil && v.HostPath.Path == dir && *v.HostPath.Type == corev1.HostPathDirectory,
			"the directory of the socket is mounted")
		claim(t, mount.Name == v.Name && mount.MountPath == dir && mount.ReadOnly && mount.SubPath == "",
			"it is mounted at its own path, read-only")
		claim(t, mount.MountPropagation == nil, "what is mounted in it later is not seen")
		claim(t, c.Args[0] == "--runtime-endpoint=unix://"+socket, "the socket in it is asked")
	})
}

func TestRunsOnEveryNode(t *testing.T) {
	each(t, func(t *testing.T, _ string, m *Manifest) {
		pod := m.DaemonSet.Spec.Template.Spec
		claim(t, reflect.DeepEqual(pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}),
			"every taint is tolerated")
		claim(t, pod.PriorityClassName == "system-node-critical", "it is not evicted first")
		claim(t, reflect.DeepEqual(pod.NodeSelector, map[string]string{"kubernetes.io/os": "linux"}), "nodes with Linux")
		d := m.DaemonSet.Spec
		for k, v := range d.Selector.MatchLabels {
			claim(t, d.Template.Labels[k] == v, "the selector selects its pods")
		}
		claim(t, d.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType &&
			*d.UpdateStrategy.RollingUpdate.MaxUnavailable == intstr.FromString("10%"), "a tenth is updated at a time")
	})
}

func TestProbes(t *testing.T) {
	each(t, func(t *testing.T, _ string, m *Manifest) {
		c := m.DaemonSet.Spec.Template.Spec.Containers[0]
		for name, p := range map[string]*corev1.Probe{"readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
			claim(t, p.HTTPGet.Path == "/healthz" && p.HTTPGet.Port == intstr.FromString(c.Ports[0].Name),
				"the "+name+" probe asks /healthz")
		}
		port := m.DaemonSet.Spec.Template.Annotations["prometheus.io/port"]
		claim(t, c.Ports[0].ContainerPort == 10271 && port == "10271", "one port")
		claim(t, strings.Contains(strings.Join(c.Args, " "), "--listen=0.0.0.0:"+port), "the port is listened on")
		// The health is bad 3 minutes after the last list; a restart then would forget what
		// an operator wants to see.
		l := c.LivenessProbe
		claim(t, l.PeriodSeconds*l.FailureThreshold >= 15*60, "the liveness probe leaves a quarter of an hour")
	})
}

// The figures are from TestFootprint, which keeps to these bounds.
func TestResources(t *testing.T) {
	each(t, func(t *testing.T, _ string, m *Manifest) {
		r := m.DaemonSet.Spec.Template.Spec.Containers[0].Resources
		claim(t, r.Requests.Cpu().Cmp(resource.MustParse(requestedCPU)) == 0, "the CPU is what was measured")
		claim(t, r.Requests.Memory().Cmp(resource.MustParse(requestedMemory)) == 0, "the memory is what was measured")
		claim(t, r.Limits.Memory().Cmp(resource.MustParse(memoryLimit)) == 0, "the limit of memory is twice as much or more")
		_, limited := r.Limits[corev1.ResourceCPU]
		claim(t, !limited, "the CPU is not limited")
	})
}

// The file for k3s has another path in three places, and nothing else.
func TestK3sDiffersOnlyInThePath(t *testing.T) {
	usual, k3s := manifest(t, "daemonset.yaml"), manifest(t, "daemonset-k3s.yaml")
	c := &usual.DaemonSet.Spec.Template.Spec.Containers[0]
	c.Args[0] = "--runtime-endpoint=unix://" + sockets["daemonset-k3s.yaml"]
	dir := filepath.Dir(sockets["daemonset-k3s.yaml"])
	c.VolumeMounts[0].MountPath = dir
	usual.DaemonSet.Spec.Template.Spec.Volumes[0].HostPath.Path = dir
	claim(t, reflect.DeepEqual(usual, k3s), "the two are the same but for the path")
}

// What a file says that Kubernetes does not know is an error of ReadManifest, so that the
// claims above are about what Kubernetes reads.
func TestReadManifestIsStrict(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(Root(), "deploy", "kubernetes", "daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{
		"readOnlyRootFilesystem:": "readOnlyRootFileSystem:",
		"kind: DaemonSet":         "kind: Deployment",
		"priorityClassName:":      "priorityclassname:",
		"kind: Namespace":         "kind: Namespace\nkind: Namespace",
	} {
		text := strings.Replace(string(content), old, changed, 1)
		if _, err := decodeManifest([]byte(text)); err == nil || text == string(content) {
			t.Errorf("%q is accepted", changed)
		}
	}
}

// An image with nothing in it needs a program that needs nothing.
func TestProgramIsStatic(t *testing.T) {
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %v", p.Type)
		}
	}
	dockerfile, err := os.ReadFile(filepath.Join(Root(), "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	claim(t, strings.Contains(string(dockerfile), "\nFROM scratch\nCOPY --from=build /out/plegwatch /plegwatch\n"+
		"ENTRYPOINT [\"/plegwatch\"]\n"), "the image has the program, and nothing else")
}
