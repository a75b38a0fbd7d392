package deploy

import (
	"cmp"
	"debug/buildinfo"
	"debug/elf"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// sockets maps each kustomize component to the path of its runtime's socket. The base, "", uses the
// usual path of containerd.
var sockets = map[string]string{
	"":     "/run/containerd/containerd.sock",
	"k3s":  "/run/k3s/containerd/containerd.sock",
	"crio": "/run/crio/crio.sock",
}

func manifest(t *testing.T, components ...string) *Manifest {
	t.Helper()
	m, err := Kustomize(components...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// each runs f as a subtest for the manifest of each runtime.
func each(t *testing.T, f func(t *testing.T, socket string, m *Manifest)) {
	for component, socket := range sockets {
		t.Run(cmp.Or(component, "base"), func(t *testing.T) {
			var components []string
			if component != "" {
				components = append(components, component)
			}
			f(t, socket, manifest(t, components...))
		})
	}
}

// claim fails the test if a statement about a manifest is false.
func claim(t *testing.T, holds bool, what string) {
	t.Helper()
	if !holds {
		t.Error("not so: " + what)
	}
}

func TestNoPrivileges(t *testing.T) {
	each(t, func(t *testing.T, socket string, m *Manifest) {
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
		want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
		if socket != sockets["crio"] {
			want.Add = []corev1.Capability{"DAC_OVERRIDE"}
		}
		claim(t, reflect.DeepEqual(s.Capabilities, want), "it has one capability, for containerd's shims")
		claim(t, s.SeccompProfile == nil && s.RunAsUser == nil, "the pod's security context applies")
		claim(t, m.Namespace.Name == m.DaemonSet.Namespace, "its namespace is the one in the file")
		claim(t, m.Namespace.Labels["pod-security.kubernetes.io/enforce"] == "privileged",
			"pod security admission lets its hostPath pass")
	})
}

// The manifest must mount the socket's directory. If it mounted the socket as a file, the pod would
// keep the old socket after a restart of the runtime. TestRestartOfRuntime in package live shows
// this.
func TestDirectoryOfTheSocketIsMounted(t *testing.T) {
	each(t, func(t *testing.T, socket string, m *Manifest) {
		pod := m.DaemonSet.Spec.Template.Spec
		c := pod.Containers[0]
		dir := filepath.Dir(socket)
		want := 2 // with the history
		if socket == sockets["k3s"] {
			want = 3 // plus the directory of the shims' sockets
		}
		claim(t, len(pod.Volumes) == want && len(c.VolumeMounts) == want, "it has no other volume")
		v, mount := pod.Volumes[0], c.VolumeMounts[0]
		claim(t, v.HostPath != nil && v.HostPath.Path == dir && *v.HostPath.Type == corev1.HostPathDirectory,
			"the directory of the socket is mounted")
		claim(t, mount.Name == v.Name && mount.MountPath == dir && mount.ReadOnly && mount.SubPath == "",
			"it is mounted at its own path, read-only")
		claim(t, mount.MountPropagation == nil, "what is mounted in it later is not seen")
		claim(t, c.Args[0] == "--runtime-endpoint=unix://"+socket, "the socket in it is asked")
		history, at := pod.Volumes[1], c.VolumeMounts[1]
		claim(t, history.EmptyDir != nil && history.EmptyDir.SizeLimit.Value() >= 12<<20 && at.Name == history.Name &&
			slices.Contains(c.Args, "--history="+at.MountPath), "the history outlives the container, and has room")
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
		claim(t, c.Args[1] == "--listen=0.0.0.0:"+port, "the port is listened on")
		// An agent is unhealthy 3 minutes after its last list. If the kubelet restarted the agent
		// then, the agent's history of the fault would be lost. So the liveness probe must wait
		// longer.
		l := c.LivenessProbe
		claim(t, l.PeriodSeconds*l.FailureThreshold >= 15*60, "the liveness probe leaves a quarter of an hour")
	})
}

// TestFootprint checks these resources against its measurements.
func TestResources(t *testing.T) {
	each(t, func(t *testing.T, _ string, m *Manifest) {
		r := m.DaemonSet.Spec.Template.Spec.Containers[0].Resources
		claim(t, r.Requests.Cpu().Cmp(resource.MustParse(requestedCPU)) == 0, "the CPU is what was measured")
		claim(t, r.Requests.Memory().Cmp(resource.MustParse(requestedMemory)) == 0, "the memory is what was measured")
		claim(t, r.Limits.Memory().Cmp(resource.MustParse(memoryLimit)) == 0, "the limit of memory is twice as much or more")
		_, limited := r.Limits[corev1.ResourceCPU]
		claim(t, !limited, "the CPU is not limited")
		e := m.DaemonSet.Spec.Template.Spec.Containers[0].Env[1]
		claim(t, e.Name == "GOMEMLIMIT" && below(t, e.Value, memoryLimit), "Go's limit of memory is below the kernel's")
	})
}

// below reports whether Go's memory limit is below 90 % of the container's limit.
func below(t *testing.T, goLimit, limit string) bool {
	t.Helper()
	mib, isMiB := strings.CutSuffix(goLimit, "MiB")
	return isMiB && quantity(mib+"Mi") < 0.9*quantity(limit)
}

// A component for another runtime changes only the socket's path, in three places, and the settings
// for the shims.
func TestRuntimesDifferOnlyInThePath(t *testing.T) {
	for component, socket := range sockets {
		if component == "" {
			continue
		}
		want, got := manifest(t), manifest(t, component)
		spec := &want.DaemonSet.Spec.Template.Spec
		spec.Containers[0].Args[0] = "--runtime-endpoint=unix://" + socket
		spec.Containers[0].VolumeMounts[0].MountPath = filepath.Dir(socket)
		spec.Volumes[0].HostPath.Path = filepath.Dir(socket)
		switch component {
		case "k3s":
			create := corev1.HostPathDirectoryOrCreate
			spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts,
				corev1.VolumeMount{Name: "shims", MountPath: "/run/containerd", ReadOnly: true})
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "shims", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/run/containerd", Type: &create},
			}})
		case "crio":
			spec.Containers[0].SecurityContext.Capabilities.Add = nil
		}
		claim(t, reflect.DeepEqual(want, got), component+" differs in the path alone")
	}
}

// The network policy allows no outgoing connections. It opens only the agent's port, and only to
// Prometheus.
func TestNetworkPolicy(t *testing.T) {
	each(t, func(t *testing.T, _ string, m *Manifest) {
		spec := m.NetworkPolicy.Spec
		claim(t, m.NetworkPolicy.Namespace == m.DaemonSet.Namespace &&
			reflect.DeepEqual(spec.PodSelector.MatchLabels, m.DaemonSet.Spec.Selector.MatchLabels), "it is about the agent")
		claim(t, slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress) && len(spec.Egress) == 0,
			"nothing goes out")
		claim(t, slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress) && len(spec.Ingress) == 1 &&
			len(spec.Ingress[0].From) == 1 && len(spec.Ingress[0].Ports) == 1, "one comes in")
		claim(t, spec.Ingress[0].Ports[0].Port.StrVal == m.DaemonSet.Spec.Template.Spec.Containers[0].Ports[0].Name,
			"to the agent's port")
	})
}

// Each component changes only the fields that it is made for.
func TestComponents(t *testing.T) {
	want := manifest(t)
	want.NetworkPolicy = nil // a network policy has no effect on the host network
	spec := &want.DaemonSet.Spec.Template.Spec
	spec.HostNetwork = true
	c := &spec.Containers[0]
	c.Args[1] = "--listen=[$(HOST_IP)]:10271"
	c.Args = append(c.Args, "--listen=127.0.0.1:10271") // for the page, and kubectl port-forward
	c.Env = append(c.Env, corev1.EnvVar{Name: "HOST_IP", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"},
	}})
	claim(t, reflect.DeepEqual(want, manifest(t, "host-network")), "host-network listens on both addresses")

	want, got := manifest(t), manifest(t, "monitoring")
	monitor, rule := got.PodMonitor, got.PrometheusRule
	want.DaemonSet.Spec.Template.Annotations, want.PodMonitor, want.PrometheusRule = nil, monitor, rule
	claim(t, reflect.DeepEqual(want, got), "monitoring scrapes the pods once")
	claim(t, monitor.Namespace == want.DaemonSet.Namespace && rule.Namespace == want.DaemonSet.Namespace,
		"its objects are in the agent's namespace")
	claim(t, reflect.DeepEqual(monitor.Spec.Selector.MatchLabels, want.DaemonSet.Spec.Selector.MatchLabels) &&
		len(monitor.Spec.PodMetricsEndpoints) == 1 && monitor.Spec.PodMetricsEndpoints[0].Path == "/metrics" &&
		monitor.Spec.PodMetricsEndpoints[0].Port == want.DaemonSet.Spec.Template.Spec.Containers[0].Ports[0].Name,
		"the agent's metrics are scraped")
	claim(t, want.DaemonSet.Spec.Template.Labels[monitor.Spec.JobLabel] == "plegwatch", "the job is not called kubelet")

	all := manifest(t, "crio", "host-network", "monitoring")
	claim(t, all.DaemonSet.Spec.Template.Spec.HostNetwork && all.PrometheusRule != nil, "components go together")
	for _, a := range []string{"10.0.0.1", "fd00::1"} {
		l, err := net.ResolveTCPAddr("tcp", "["+a+"]:10271")
		claim(t, err == nil && l.IP.String() == a, "a node's address may be in brackets")
	}
}

var rewrite = flag.Bool("rewrite", false, "write the PrometheusRule of the rules and alerts in plegwatch/mixin/")

// The PrometheusRule contains exactly the rules and alerts of the files in plegwatch/mixin/.
func TestPrometheusRuleIsTheMixin(t *testing.T) {
	want := `# plegwatch/mixin/rules.yaml and plegwatch/mixin/alerts.yaml. Do not edit it: "make prometheusrule" writes it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: plegwatch
spec:
  groups:
`
	for _, name := range []string{"rules.yaml", "alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join(Root(), "plegwatch", "mixin", name))
		if err != nil {
			t.Fatal(err)
		}
		_, groups, found := strings.Cut(string(text), "\ngroups:\n")
		if !found {
			t.Fatalf("%s has no groups", name)
		}
		for line := range strings.Lines(groups) {
			want += strings.TrimRight("  "+line, " \n") + "\n"
		}
	}
	path := filepath.Join(Root(), "plegwatch", "deploy", "kustomize", "components", "monitoring", "prometheusrule.yaml")
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s is not that of plegwatch/mixin/, %v: run \"make prometheusrule\"", path, err)
	}
	if n := len(manifest(t, "monitoring").PrometheusRule.Spec.Groups); n < 2 {
		t.Errorf("%d groups", n)
	}
}

// Kustomize fails on fields and kinds that Kubernetes does not know. So a misspelt field cannot
// pass the other tests.
func TestKustomizeIsStrict(t *testing.T) {
	for old, changed := range map[string]string{
		"readOnlyRootFilesystem:": "readOnlyRootFileSystem:",
		"kind: DaemonSet":         "kind: Deployment",
		"priorityClassName:":      "priorityclassname:",
		"kind: Namespace":         "kind: Namespace\nkind: Namespace",
		"podSelector:":            "podsSelector:",
	} {
		files := filesys.MakeFsInMemory()
		if err := copyTo(files, os.DirFS(filepath.Join(Root(), "plegwatch", "deploy")), "kustomize"); err != nil {
			t.Fatal(err)
		}
		changes := 0
		for _, name := range []string{"namespace.yaml", "daemonset.yaml", "networkpolicy.yaml"} {
			path := "kustomize/base/" + name
			content, err := files.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changes += strings.Count(string(content), old)
			if err := files.WriteFile(path, []byte(strings.Replace(string(content), old, changed, 1))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := kustomize(files, nil); err == nil || changes != 1 {
			t.Errorf("%q is accepted, %d changes", changed, changes)
		}
	}
}

// The program must be static, because its image contains no libraries.
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
	out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
	claim(t, err == nil && strings.HasPrefix(string(out), "plegwatch "+Version+" (revision unknown, go"),
		"it says its version: "+string(out))
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	newest := map[string]string{}
	for _, m := range info.Deps {
		newest[m.Path] = m.Version
	}
	lowest, err := os.ReadFile(filepath.Join(Root(), "go.mod"))
	claim(t, err == nil && newest["google.golang.org/grpc"] != "" &&
		!strings.Contains(string(lowest), "google.golang.org/grpc "+newest["google.golang.org/grpc"]+"\n"),
		"it is not built from the lowest versions that the library works with")
}

// The image contains only the program. A pinned compiler builds it for both architectures.
func TestDockerfile(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(Root(), "plegwatch", "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	dockerfile := string(content)
	_, image, _ := strings.Cut(dockerfile, "\nFROM scratch\n")
	claim(t, strings.HasSuffix(image, "\nCOPY --from=build /out/plegwatch /plegwatch\nENTRYPOINT [\"/plegwatch\"]\n") &&
		strings.Count(image, "COPY") == 1, "the image has the program, and nothing else")
	claim(t, regexp.MustCompile(`\nFROM --platform=\$BUILDPLATFORM golang:[0-9.]+-\w+@sha256:[0-9a-f]{64} AS build\n`).
		MatchString(dockerfile), "the compiler is pinned by its digest, and runs on the machine that builds")
	for _, label := range []string{"title", "description", "source", "licenses", "version", "revision"} {
		claim(t, strings.Contains(image, "org.opencontainers.image."+label+"="), "it has the label "+label)
	}
	// The program also builds for the other architecture.
	build := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, ".")
	build.Dir = filepath.Join(Root(), "plegwatch")
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOARCH="+other)
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
