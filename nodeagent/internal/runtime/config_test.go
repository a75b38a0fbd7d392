package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg"
)

func pod(c v1.Container, volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", UID: "u", Labels: map[string]string{"app": "x"}},
		Spec: v1.PodSpec{Containers: []v1.Container{c}, Volumes: volumes, TerminationGracePeriodSeconds: ptr.To[int64](7),
			SecurityContext: &v1.PodSecurityContext{RunAsUser: ptr.To[int64](5)}},
	}
}

// A container's configuration matches its specification.
func TestContainerConfig(t *testing.T) {
	dir := t.TempDir()
	c := New(nil, dir, "/pods")
	container := v1.Container{
		Name: "c", Image: "i", Command: []string{"run", "$(A)", "$$(A)", "$(B)", "$", "$(", "100%"}, Args: []string{"$(C)"},
		Env: []v1.EnvVar{{Name: "A", Value: "1"}, {Name: "C", Value: "$(A)2"}},
		Resources: v1.ResourceRequirements{
			Limits:   v1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("1Mi")},
			Requests: v1.ResourceList{"cpu": resource.MustParse("250m")},
		},
		SecurityContext: &v1.SecurityContext{
			RunAsGroup: ptr.To[int64](6), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
			Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_RAW"}, Drop: []v1.Capability{"ALL"}},
		},
		VolumeMounts: []v1.VolumeMount{{Name: "work", MountPath: "/work"}, {Name: "host", MountPath: "/host",
			ReadOnly: true}},
	}
	p := pod(container, v1.Volume{Name: "work", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{
			Path: filepath.Join(dir, "made"), Type: ptr.To(v1.HostPathDirectoryOrCreate)}}})
	got, err := c.containerConfig(p, &p.Spec.Containers[0], nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"run", "1", "$(A)", "$(B)", "$", "$(", "100%"} {
		if got.Command[i] != want {
			t.Errorf("argument %d is %q, want %q", i, got.Command[i], want)
		}
	}
	r, s := got.Linux.Resources, got.Linux.SecurityContext
	switch {
	case got.Args[0] != "12", got.Metadata.Attempt != 3, got.Annotations[annotationRestartCount] != "3",
		got.Labels["io.kubernetes.container.name"] != "c", got.Labels["io.kubernetes.pod.uid"] != "u":
		t.Errorf("%v", got)
	case r.CpuShares != 256, r.CpuQuota != 50000, r.CpuPeriod != 100000, r.MemoryLimitInBytes != 1<<20:
		t.Errorf("%v", r)
	case s.RunAsUser.Value != 5, s.RunAsGroup.Value != 6, !s.ReadonlyRootfs, !s.NoNewPrivs, len(s.MaskedPaths) == 0,
		s.Capabilities.AddCapabilities[0] != "NET_RAW", s.Capabilities.DropCapabilities[0] != "ALL":
		t.Errorf("%v", s)
	case got.Mounts[0].HostPath != filepath.Join(dir, "pods", "u", "volumes", "work"), !got.Mounts[1].Readonly:
		t.Errorf("%v", got.Mounts)
	}
	for _, m := range got.Mounts {
		if info, err := os.Stat(m.HostPath); err != nil || !info.IsDir() {
			t.Errorf("%v", err)
		}
	}
	if err := c.Collect(func(types.UID) bool { return false }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pods", "u")); err == nil {
		t.Error("the pod's directory is left")
	}
}

// Environment variables of a container can contain fields of its pod, such as the pod's present
// addresses.
func TestFieldsInEnvironment(t *testing.T) {
	p := pod(v1.Container{})
	p.Spec.NodeName, p.Annotations = "node", map[string]string{"x/y": "z"}
	p.Status = v1.PodStatus{HostIP: "192.0.2.1", PodIP: "10.0.0.7", PodIPs: []v1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}}
	for path, want := range map[string]string{
		"metadata.name": "a", "metadata.namespace": "n", "metadata.uid": "u", "spec.nodeName": "node",
		"spec.serviceAccountName": "", "status.hostIP": "192.0.2.1", "status.hostIPs": "192.0.2.1",
		"status.podIP": "10.0.0.7", "status.podIPs": "10.0.0.7,fd00::7", "metadata.labels['app']": "x",
		"metadata.annotations['x/y']": "z", "metadata.labels['none']": "",
	} {
		p.Spec.Containers[0].Env = []v1.EnvVar{
			{Name: "A", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}},
			{Name: "B", Value: "<$(A)>"},
		}
		got, err := New(nil, t.TempDir(), "").containerConfig(p, &p.Spec.Containers[0], nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := string(got.Envs[0].Value), string(got.Envs[1].Value); a != want || b != "<"+want+">" {
			t.Errorf("%s: %q and %q, want %q", path, a, b, want)
		}
	}
}

// A container sees its pod's hosts file at /etc/hosts, in the kubelet's format. The file contains
// the host's entries only if the pod uses the host's network. If the manifest mounts a volume at
// /etc/hosts, the container sees the volume.
func TestHosts(t *testing.T) {
	dir := t.TempDir()
	c := New(nil, dir, "")
	p := pod(v1.Container{Name: "c"})
	p.Spec.HostAliases = []v1.HostAlias{{IP: "127.0.0.1", Hostnames: []string{"x", "y"}}}
	p.Status.PodIPs = []v1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}
	hosts := func() string {
		t.Helper()
		config, err := c.containerConfig(p, &p.Spec.Containers[0], nil, 0)
		if err != nil || len(config.Mounts) != 1 || config.Mounts[0].ContainerPath != "/etc/hosts" {
			t.Fatalf("%v, %v", config, err)
		}
		info, err := os.Stat(config.Mounts[0].HostPath)
		if err != nil || info.Mode() != 0o644 {
			t.Errorf("%v, %v", info, err)
		}
		text, err := os.ReadFile(config.Mounts[0].HostPath)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const aliases = "\n# Entries added by HostAliases.\n127.0.0.1\tx\ty\n"
	if got, want := hosts(), "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"+
		"::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n"+
		"fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n10.0.0.7\ta\nfd00::7\ta\n"+aliases; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	p.Spec.HostNetwork, p.Status.PodIPs = true, p.Status.PodIPs[:1]
	own, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hosts(), "# Kubernetes-managed hosts file (host network).\n"+string(own)+aliases; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/etc/hosts"}}
	config, err := c.containerConfig(p, &p.Spec.Containers[0], nil, 0)
	if err != nil || len(config.Mounts) != 1 || filepath.Base(config.Mounts[0].HostPath) != "v" {
		t.Errorf("%v, %v", config, err)
	}
	if hash := SandboxHash(p); hash == SandboxHash(pod(v1.Container{})) {
		t.Error("a pod with other aliases keeps its hosts file")
	}
}

// Mount propagation follows the manifest; by default, mounts are private.
func TestMountPropagation(t *testing.T) {
	p := pod(v1.Container{}, v1.Volume{Name: "v",
		VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/mnt"}}})
	for mode, want := range map[v1.MountPropagationMode]runtimeapi.MountPropagation{
		"": runtimeapi.MountPropagation_PROPAGATION_PRIVATE, "None": runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
		"HostToContainer": runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		"Bidirectional":   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
	} {
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
		if mode != "" {
			p.Spec.Containers[0].VolumeMounts[0].MountPropagation = &mode
		}
		got, err := New(nil, t.TempDir(), "").containerConfig(p, &p.Spec.Containers[0], nil, 0)
		if err != nil || got.Mounts[0].Propagation != want {
			t.Errorf("%q: %v, %v", mode, got, err)
		}
	}
}

// An in-memory volume is a separate file system. Collect removes it when its pod is gone.
func TestVolumeInMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		fmt.Fprintf(os.Stderr, "SKIPPED: %s: it needs root to mount\n", t.Name())
		t.Skip("it needs root to mount")
	}
	dir := t.TempDir()
	c, p := New(nil, dir, ""), pod(v1.Container{})
	vol := &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "Memory"}}}
	for range 2 { // the second time, the volume exists and contains a file
		path, err := c.volume(p, vol)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(path, syscall.MNT_DETACH) })
		info, err := os.Stat(path)
		if err != nil || info.Mode() != fs.ModeDir|0o777 {
			t.Errorf("%v, %v", info, err)
		}
		if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); err != nil {
			t.Error(err)
		}
		// Another test may have given the main thread, which is /proc/self, mounts of its own.
		mounts, err := os.ReadFile("/proc/thread-self/mounts")
		if n := strings.Count(string(mounts), " "+path+" tmpfs "); n != 1 || err != nil {
			t.Errorf("mounted %d times, %v", n, err)
		}
	}
	if err := c.Collect(func(types.UID) bool { return false }); err != nil {
		t.Error(err)
	}
	if mounts, err := os.ReadFile("/proc/thread-self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("it is left: %v", err)
	}
}

// If a container uses mount propagation, the volume is a shared mount with the same content, also
// on a host with private mounts. Other volumes on the disk are no mounts. Collect removes the volume
// when its pod is gone, and nothing that is mounted inside.
func TestMountPropagationOfEmptyDir(t *testing.T) {
	if os.Geteuid() != 0 {
		fmt.Fprintf(os.Stderr, "SKIPPED: %s: it needs root to mount\n", t.Name())
		t.Skip("it needs root to mount")
	}
	dir, kept := t.TempDir(), t.TempDir()
	c := New(nil, dir, "")
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.LockOSThread() // the thread, which has its own mounts from now on, ends with the goroutine
		if err := errors.Join(syscall.Unshare(syscall.CLONE_NEWNS),
			syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, "")); err != nil {
			t.Error(err)
			return
		}
		p, wanted := pod(v1.Container{}), map[string]int{"none": 0, "own": 0, "slave": 1, "shared": 1, "memory": 1}
		for name, mode := range map[string]*v1.MountPropagationMode{"none": nil, "own": ptr.To(v1.MountPropagationNone),
			"slave": ptr.To(v1.MountPropagationHostToContainer), "shared": ptr.To(v1.MountPropagationBidirectional),
			"memory": ptr.To(v1.MountPropagationHostToContainer)} {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: name, MountPropagation: mode}}
			vol := &v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
			if name == "memory" {
				vol.EmptyDir.Medium = v1.StorageMediumMemory
			}
			for range 2 {
				path, err := c.volume(p, vol)
				infos, unreadable := os.ReadFile("/proc/thread-self/mountinfo")
				if n := len(regexp.MustCompile(" "+path+" .*shared:").FindAll(infos, -1)); n != wanted[name] ||
					errors.Join(err, unreadable, os.WriteFile(filepath.Join(path, "x"), nil, 0o600)) != nil {
					t.Errorf("%s is %d shared mounts, %v", name, n, err)
				}
			}
		}
		inside := filepath.Join(dir, "pods", string(p.UID), "volumes", "shared", "inside")
		if err := errors.Join(os.Mkdir(inside, 0o700), os.WriteFile(filepath.Join(kept, "x"), nil, 0o600),
			syscall.Mount(kept, inside, "", syscall.MS_BIND, ""),
			c.Collect(func(types.UID) bool { return false })); err != nil {
			t.Error(err)
		}
		if infos, err := os.ReadFile("/proc/thread-self/mountinfo"); err != nil || strings.Contains(string(infos), dir) {
			t.Errorf("a mount is left: %v", err)
		}
	}()
	<-done
	left, err := os.ReadDir(filepath.Join(dir, "pods"))
	if _, gone := os.Stat(filepath.Join(kept, "x")); len(left) > 0 || err != nil || gone != nil {
		t.Errorf("left: %v, %v; kept: %v", left, err, gone)
	}
}

// Admit refuses what the node cannot run, with the kubelet's reasons and messages. Init containers
// run one after the other, beside the sidecars before them.
func TestAdmit(t *testing.T) {
	always := ptr.To(v1.ContainerRestartPolicyAlways)
	profile := func(kind v1.AppArmorProfileType) *v1.AppArmorProfile { return &v1.AppArmorProfile{Type: kind} }
	asks := func(cpu, memory string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}}
	}
	for _, c := range []struct {
		name            string
		init, regular   []v1.Container
		appArmor        v1.AppArmorProfileType
		reason, message string
	}{
		{name: "nothing", regular: []v1.Container{{}}},
		{name: "all", regular: []v1.Container{{Resources: asks("1", "1Gi")}, {Resources: asks("1", "0")}}},
		{name: "cpu", regular: []v1.Container{{Resources: asks("1", "0")}, {Resources: asks("1001m", "0")}},
			reason:  "OutOfcpu",
			message: "Pod was rejected: Node didn't have enough resource: cpu, requested: 2001, used: 0, capacity: 2000"},
		{name: "memory", regular: []v1.Container{{Resources: asks("1", "2Gi")}}, reason: "OutOfmemory",
			message: "Pod was rejected: Node didn't have enough resource: memory, requested: 2147483648, used: 0, " +
				"capacity: 1073741824"},
		{name: "one after the other", init: []v1.Container{{Resources: asks("2", "1Gi")}, {Resources: asks("2", "1Gi")}},
			regular: []v1.Container{{Resources: asks("2", "1Gi")}}},
		{name: "init", init: []v1.Container{{Resources: asks("3", "0")}}, regular: []v1.Container{{}}, reason: "OutOfcpu"},
		{name: "sidecar", init: []v1.Container{{Resources: asks("1", "0"), RestartPolicy: always}},
			regular: []v1.Container{{Resources: asks("2", "0")}}, reason: "OutOfcpu"},
		{name: "init after a sidecar", init: []v1.Container{
			{Resources: asks("1", "0"), RestartPolicy: always}, {Resources: asks("2", "0")}},
			regular: []v1.Container{{}}, reason: "OutOfcpu"},
		{name: "unconfined", regular: []v1.Container{{}}, appArmor: v1.AppArmorProfileTypeUnconfined},
		{name: "profile", regular: []v1.Container{{}}, appArmor: v1.AppArmorProfileTypeRuntimeDefault, reason: "AppArmor",
			message: "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host"},
	} {
		p := pod(v1.Container{})
		p.Spec.InitContainers, p.Spec.Containers = c.init, c.regular
		if c.appArmor != "" {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{AppArmorProfile: profile(c.appArmor)}
		}
		reason, message := node{milliCPU: 2000, memory: 1 << 30}.admit(p)
		if reason != c.reason || c.message != "" && message != c.message {
			t.Errorf("%s: %s, %s", c.name, reason, message)
		}
		p.Spec.SecurityContext.AppArmorProfile = profile(v1.AppArmorProfileTypeRuntimeDefault)
		if reason, _ := (node{milliCPU: 2000, memory: 1 << 30}).admit(p); reason != "AppArmor" {
			t.Errorf("%s of a pod with AppArmor: %q", c.name, reason)
		}
		if reason, _ := (node{milliCPU: 9000, memory: 1 << 40, appArmor: true}).admit(p); reason != "" {
			t.Errorf("%s on a large node: %s", c.name, reason)
		}
	}
	if reason, message := Admit(pod(v1.Container{Resources: asks("1m", "1Mi")})); reason != "" {
		t.Error(reason, message)
	}
	if reason, _ := Admit(pod(v1.Container{Resources: asks("1m", "1Ei")})); reason != "OutOfmemory" {
		t.Error(reason)
	}
}

// A hostPath must be of the type in the manifest. If the type is DirectoryOrCreate or FileOrCreate,
// a missing path is created. An emptyDir belongs to the group fsGroup.
func TestVolumes(t *testing.T) {
	dir := t.TempDir()
	c := New(nil, filepath.Join(dir, "state"), "")
	p := pod(v1.Container{Name: "c"})
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("x"), 0o600), os.Mkdir(at("dir"), 0o700),
		syscall.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		path string
		kind v1.HostPathType
		ok   bool
	}{
		{"none", v1.HostPathUnset, true}, {"none", v1.HostPathFile, false}, {"none", v1.HostPathDirectory, false},
		{"file", v1.HostPathFile, true}, {"file", v1.HostPathFileOrCreate, true}, {"file", v1.HostPathDirectory, false},
		{"file", v1.HostPathDirectoryOrCreate, false}, {"file", v1.HostPathSocket, false},
		{"dir", v1.HostPathFile, false}, {"dir", v1.HostPathFileOrCreate, false}, {"dir", v1.HostPathDirectory, true},
		{"pipe", v1.HostPathFileOrCreate, false}, {"pipe", v1.HostPathCharDev, false},
		{"new/dir", v1.HostPathDirectoryOrCreate, true}, {"new/file", v1.HostPathFileOrCreate, true},
		{"away/file", v1.HostPathFileOrCreate, false}, // as in the kubelet, no directory is created
	} {
		path, err := c.volume(p, &v1.Volume{VolumeSource: v1.VolumeSource{
			HostPath: &v1.HostPathVolumeSource{Path: at(v.path), Type: &v.kind}}})
		if (err == nil) != v.ok || v.ok && path != at(v.path) {
			t.Errorf("%s of type %q: %s, %v", v.path, v.kind, path, err)
		}
	}
	if text, err := os.ReadFile(at("file")); string(text) != "x" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if path, err := c.volume(p, &v1.Volume{VolumeSource: v1.VolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: "/dev/null", Type: ptr.To(v1.HostPathCharDev)}}}); err != nil {
		t.Error(path, err)
	}
	group := os.Getgid()
	p.Spec.SecurityContext.FSGroup = ptr.To(int64(group))
	path, err := c.volume(p, &v1.Volume{Name: "work", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 ||
		info.Sys().(*syscall.Stat_t).Gid != uint32(group) {
		t.Errorf("%v, %v", info, err)
	}
}

// A sandbox's annotations identify the state directory of its agent. SandboxHash changes if the
// network changes, but not if labels change.
func TestSandboxConfig(t *testing.T) {
	c := New(nil, "/state", "/pods")
	p := pod(v1.Container{Name: "c", SecurityContext: &v1.SecurityContext{Privileged: ptr.To(true)}})
	p.Spec.HostNetwork, p.Spec.HostPID = true, true
	got := c.sandboxConfig(p, 2)
	n := got.Linux.SecurityContext.NamespaceOptions
	seen := func(annotations map[string]string) *pleg.PodStatus {
		return &pleg.PodStatus{ID: "u", Name: "a", Namespace: "n",
			SandboxStatuses: []*runtimeapi.PodSandboxStatus{{Annotations: annotations}}}
	}
	if got.Metadata.Attempt != 2 || got.Hostname != "" || got.Labels["app"] != "x" || got.Linux.CgroupParent != "/pods" ||
		n.Network != runtimeapi.NamespaceMode_NODE || n.Pid != runtimeapi.NamespaceMode_NODE ||
		n.Ipc != runtimeapi.NamespaceMode_POD ||
		!got.Linux.SecurityContext.Privileged {
		t.Errorf("%v", got)
	}
	orphan := c.Orphan(seen(got.Annotations))
	if orphan == nil || orphan.UID != "u" || orphan.Name != "a" || *orphan.Spec.TerminationGracePeriodSeconds != 7 {
		t.Errorf("%v", orphan)
	}
	for _, other := range []*v1.Pod{New(nil, "/other", "").Orphan(seen(got.Annotations)), c.Orphan(seen(nil)),
		c.Orphan(&pleg.PodStatus{})} {
		if other != nil {
			t.Errorf("another program's sandbox: %v", other)
		}
	}
	for _, seconds := range []string{"", "-1", "x", "9223372036854775807"} {
		got.Annotations[annotationGracePeriod] = seconds
		if got := *c.Orphan(seen(got.Annotations)).Spec.TerminationGracePeriodSeconds; got != 30 {
			t.Errorf("a grace period of %q is taken for %d s", seconds, got)
		}
	}
	hash := SandboxHash(p)
	p.Labels["app"] = "y"
	if SandboxHash(p) != hash {
		t.Error("labels change the sandbox")
	}
	p.Spec.HostNetwork = false
	if SandboxHash(p) == hash || c.sandboxConfig(p, 0).Hostname != "a" {
		t.Error("the network does not")
	}
	if ContainerHash(p, &p.Spec.Containers[0]) == ContainerHash(p, &v1.Container{Name: "c"}) {
		t.Error("two containers have one hash")
	}
}

// If a pod uses the host's network, its sandbox's configuration contains no host name, because
// runtimes refuse a host name there.
func TestHostname(t *testing.T) {
	for _, c := range []struct {
		hostname    string
		hostNetwork bool
		want        string
	}{{"", false, "a"}, {"x", false, "x"}, {"", true, ""}, {"x", true, ""}} {
		p := pod(v1.Container{})
		p.Spec.Hostname, p.Spec.HostNetwork = c.hostname, c.hostNetwork
		if got := New(nil, "", "").sandboxConfig(p, 0).Hostname; got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// oomScoreAdj returns the kubelet's values, here for a node with 10,000 bytes of memory.
func TestOOMScoreAdj(t *testing.T) {
	of := func(name string, request, limit string) v1.Container {
		c := v1.Container{Name: name, Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}}
		for list, value := range map[*v1.ResourceList]string{&c.Resources.Requests: request, &c.Resources.Limits: limit} {
			if value != "" {
				(*list)["memory"], (*list)["cpu"] = resource.MustParse(value), resource.MustParse("1")
			}
		}
		return c
	}
	sidecar := of("side", "1", "")
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	critical := pod(of("c", "", ""))
	critical.Spec.PriorityClassName = "system-node-critical"
	beside := pod(of("c", "2000", ""))
	beside.Spec.InitContainers = []v1.Container{sidecar}
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		want int64
		qos  v1.PodQOSClass
	}{
		{"nothing asked for", pod(of("c", "", "")), 1000, v1.PodQOSBestEffort},
		{"all limited", pod(of("c", "10", "10")), -997, v1.PodQOSGuaranteed},
		{"a tenth", pod(of("c", "1000", "")), 900, v1.PodQOSBurstable},
		{"next to nothing", pod(of("c", "1", "")), 999, v1.PodQOSBurstable},
		{"all", pod(of("c", "10000", "")), 3, v1.PodQOSBurstable},
		{"a sidecar", beside, 800, v1.PodQOSBurstable},
		{"critical", critical, -997, v1.PodQOSBestEffort},
	} {
		container := &c.pod.Spec.Containers[0]
		if len(c.pod.Spec.InitContainers) > 0 {
			container = &c.pod.Spec.InitContainers[0]
		}
		if got := oomScoreAdj(c.pod, container, 10000); got != c.want || QOS(c.pod) != c.qos {
			t.Errorf("%s: %d, %s, want %d, %s", c.name, got, QOS(c.pod), c.want, c.qos)
		}
	}
	if got := resources(beside, &beside.Spec.Containers[0]).OomScoreAdj; got != 999 {
		t.Errorf("%d of this node's memory", got)
	}
}
