// Package security gives containers the user, groups, capabilities and filters that the kubelet
// would give them.
package security

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// namespaces returns the namespaces of a pod's containers. By default, network and IPC are the
// pod's, and PIDs are the container's. The manifest can select the host's namespaces, or one PID
// namespace for the pod.
func namespaces(pod *v1.Pod) *runtimeapi.NamespaceOption {
	of := map[bool]runtimeapi.NamespaceMode{true: runtimeapi.NamespaceMode_NODE, false: runtimeapi.NamespaceMode_POD}
	n := &runtimeapi.NamespaceOption{Network: of[pod.Spec.HostNetwork], Ipc: of[pod.Spec.HostIPC]}
	n.Pid = runtimeapi.NamespaceMode_CONTAINER
	if pod.Spec.HostPID || ptr.Deref(pod.Spec.ShareProcessNamespace, false) {
		n.Pid = of[pod.Spec.HostPID]
	}
	return n
}

func privileged(c *v1.Container) bool {
	return c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
}

// alwaysMasked lists paths in /proc and /sys that a container cannot see. readonlyPaths lists paths
// that a container cannot write.
var (
	alwaysMasked = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// maskedPaths returns the paths that a container cannot see. The paths include thermal_throttle of
// each CPU in the directory cpus, because a CPU's heat reveals the work of other programs.
func maskedPaths(cpus string) []string {
	perCPU, _ := filepath.Glob(filepath.Join(cpus, "cpu[0-9]*", "thermal_throttle")) // the pattern is valid
	return slices.Concat(alwaysMasked, perCPU)
}

// Sandbox returns the security context of a pod's sandbox.
func Sandbox(pod *v1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	return &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod), Privileged: slices.ContainsFunc(plan.Containers(pod), privileged),
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
}

// Container returns the security context of a container. Fields of the container override fields of
// the pod. If neither sets a user, the image's user is set, because CRI refuses a group without a
// user. Container fails if runAsNonRoot is set and the container would or might run as root.
func Container(pod *v1.Pod, c *v1.Container,
	image *runtimeapi.Image) (*runtimeapi.LinuxContainerSecurityContext, error) {
	of, own := pod.Spec.SecurityContext, cmp.Or(c.SecurityContext, &v1.SecurityContext{})
	s := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces(pod), Privileged: privileged(c), SupplementalGroups: of.SupplementalGroups,
		ReadonlyRootfs: ptr.Deref(own.ReadOnlyRootFilesystem, false),
		NoNewPrivs:     !ptr.Deref(own.AllowPrivilegeEscalation, true),
		Seccomp:        profile(cmp.Or(own.SeccompProfile, of.SeccompProfile, &v1.SeccompProfile{}).Type),
	}
	if !s.Privileged {
		s.MaskedPaths, s.ReadonlyPaths = maskedPaths("/sys/devices/system/cpu"), readonlyPaths
	}
	if of.FSGroup != nil {
		s.SupplementalGroups = slices.Concat([]int64{*of.FSGroup}, s.SupplementalGroups)
	}
	if own.Capabilities != nil {
		s.Capabilities = &runtimeapi.Capability{
			AddCapabilities: texts(own.Capabilities.Add), DropCapabilities: texts(own.Capabilities.Drop),
		}
	}
	if p := cmp.Or(own.AppArmorProfile, of.AppArmorProfile); p != nil {
		s.Apparmor = profile(p.Type)
	}
	if group := cmp.Or(own.RunAsGroup, of.RunAsGroup); group != nil {
		s.RunAsGroup = &runtimeapi.Int64Value{Value: *group}
	}
	switch user := cmp.Or(own.RunAsUser, of.RunAsUser); {
	case user != nil:
		s.RunAsUser = &runtimeapi.Int64Value{Value: *user}
	case image.GetUid() == nil && image.GetUsername() != "":
		s.RunAsUsername = image.GetUsername()
	default:
		s.RunAsUser = &runtimeapi.Int64Value{Value: image.GetUid().GetValue()}
	}
	switch {
	case !ptr.Deref(cmp.Or(own.RunAsNonRoot, of.RunAsNonRoot), false):
		return s, nil
	case s.RunAsUser == nil:
		return nil, fmt.Errorf("runAsNonRoot: the image's user %q has no number, and may be root", s.RunAsUsername)
	case s.RunAsUser.Value == 0:
		return nil, errors.New("runAsNonRoot: it would run as root")
	default:
		return s, nil
	}
}

// WantsAppArmor reports whether a pod or one of its containers has an AppArmor profile.
func WantsAppArmor(pod *v1.Pod) bool {
	wants := func(p *v1.AppArmorProfile) bool { return p != nil && p.Type != v1.AppArmorProfileTypeUnconfined }
	return wants(pod.Spec.SecurityContext.AppArmorProfile) ||
		slices.ContainsFunc(plan.Containers(pod), func(c *v1.Container) bool {
			return c.SecurityContext != nil && wants(c.SecurityContext.AppArmorProfile)
		})
}

// profile converts the type of a seccomp or AppArmor profile. Validation refuses custom profiles.
func profile[T ~string](kind T) *runtimeapi.SecurityProfile {
	if string(kind) == string(v1.SeccompProfileTypeRuntimeDefault) {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func texts[T ~string](names []T) (texts []string) {
	for _, name := range names {
		texts = append(texts, string(name))
	}
	return texts
}
