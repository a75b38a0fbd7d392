package manifest

import (
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// validator collects what is wrong with a pod.
type validator struct {
	pod  *v1.Pod
	errs field.ErrorList
	// names are those of the containers so far, volumes those of all volumes.
	names, volumes sets.Set[string]
}

// longestNames is how long the namespace, the name and the UID of a pod may be together: a file of its status has them
// in its name, which may have 255 bytes.
const longestNames = 255 - len("__.json.tmp")

// ValidateNames returns what is wrong with a pod's names, which become parts of paths and cgroups.
func ValidateNames(pod *v1.Pod) field.ErrorList {
	v, meta := &validator{}, field.NewPath("metadata")
	v.all(meta.Child("name"), pod.Name, validation.IsDNS1123Subdomain(pod.Name))
	v.all(meta.Child("namespace"), pod.Namespace, validation.IsDNS1123Label(pod.Namespace))
	v.all(meta.Child("uid"), string(pod.UID), validation.IsDNS1123Label(strings.ToLower(string(pod.UID))))
	others := len(pod.Namespace) + len(pod.UID)
	v.check(others+len(pod.Name) <= longestNames, field.TooLong(meta.Child("name"), pod.Name, longestNames-others))
	return v.errs
}

// validate returns what is wrong with a pod whose defaults are set.
func validate(pod *v1.Pod) field.ErrorList {
	v := &validator{pod: pod, names: sets.New[string](), volumes: sets.New[string](), errs: ValidateNames(pod)}
	spec := field.NewPath("spec")
	for key := range pod.Annotations {
		v.check(!strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix),
			field.Forbidden(field.NewPath("metadata", "annotations").Key(key), "appArmorProfile is a field now"))
	}
	if pod.Spec.Hostname != "" {
		v.all(spec.Child("hostname"), pod.Spec.Hostname, validation.IsDNS1123Label(pod.Spec.Hostname))
	}
	for i := range pod.Spec.Volumes {
		v.volume(spec.Child("volumes").Index(i), &pod.Spec.Volumes[i])
	}
	for i := range pod.Spec.InitContainers {
		c, at := &pod.Spec.InitContainers[i], spec.Child("initContainers").Index(i)
		v.container(at, c)
		if c.RestartPolicy != nil {
			continue // it is a sidecar
		}
		for _, kind := range plan.ProbeKinds {
			v.check(plan.Probe(c, kind) == nil, field.Forbidden(at.Child(string(kind)+"Probe"), "only of a sidecar"))
		}
		v.check(c.Lifecycle == nil, field.Forbidden(at.Child("lifecycle"), "only of a sidecar"))
	}
	v.check(len(pod.Spec.Containers) > 0, field.Required(spec.Child("containers"), "a pod has a container"))
	for i := range pod.Spec.Containers {
		v.container(spec.Child("containers").Index(i), &pod.Spec.Containers[i])
	}
	return v.errs
}

func (v *validator) volume(at *field.Path, vol *v1.Volume) {
	v.all(at.Child("name"), vol.Name, validation.IsDNS1123Label(vol.Name))
	v.unique(at.Child("name"), vol.Name, v.volumes)
	v.check((vol.EmptyDir == nil) != (vol.HostPath == nil), field.Required(at, "one of emptyDir and hostPath"))
	if h := vol.HostPath; h != nil {
		v.absolute(at.Child("hostPath", "path"), h.Path)
	}
}

func (v *validator) container(at *field.Path, c *v1.Container) {
	v.all(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))
	v.unique(at.Child("name"), c.Name, v.names)
	v.check(c.Image != "" && strings.TrimSpace(c.Image) == c.Image,
		field.Invalid(at.Child("image"), c.Image, "is no name of an image"))
	for i, e := range c.Env {
		v.all(at.Child("env").Index(i).Child("name"), e.Name, validation.IsEnvVarName(e.Name))
	}
	ports, mounts := sets.New[string](), sets.New[string]()
	for i, p := range c.Ports {
		v.port(at.Child("ports").Index(i), p, ports)
	}
	for i, m := range c.VolumeMounts {
		at := at.Child("volumeMounts").Index(i)
		v.check(v.volumes.Has(m.Name), field.NotFound(at.Child("name"), m.Name))
		v.absolute(at.Child("mountPath"), m.MountPath)
		v.unique(at.Child("mountPath"), m.MountPath, mounts)
	}
	for _, kind := range plan.ProbeKinds {
		if p := plan.Probe(c, kind); p != nil {
			h := v1.LifecycleHandler{Exec: p.Exec, HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket}
			v.action(at.Child(string(kind)+"Probe"), c, h, p.GRPC)
		}
	}
	v.resources(at.Child("resources", "limits"), c.Resources.Limits)
	v.resources(at.Child("resources", "requests"), c.Resources.Requests)
	if h := c.Lifecycle; h != nil && h.PostStart != nil {
		v.action(at.Child("lifecycle", "postStart"), c, *h.PostStart, nil)
	}
	if h := c.Lifecycle; h != nil && h.PreStop != nil {
		v.action(at.Child("lifecycle", "preStop"), c, *h.PreStop, nil)
	}
}

func (v *validator) port(at *field.Path, p v1.ContainerPort, names sets.Set[string]) {
	v.all(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))
	if p.Name != "" {
		v.all(at.Child("name"), p.Name, validation.IsValidPortName(p.Name))
		v.unique(at.Child("name"), p.Name, names)
	}
	v.check(p.HostPort == 0 || v.pod.Spec.HostNetwork,
		field.Forbidden(at.Child("hostPort"), "this agent has host ports only with hostNetwork"))
	v.check(p.HostPort == 0 || p.HostPort == p.ContainerPort,
		field.Invalid(at.Child("hostPort"), p.HostPort, "must be containerPort"))
}

// action checks what a probe or a hook does.
func (v *validator) action(at *field.Path, c *v1.Container, h v1.LifecycleHandler, grpc *v1.GRPCAction) {
	n := 0
	if h.Exec != nil {
		n++
		v.check(len(h.Exec.Command) > 0, field.Required(at.Child("exec", "command"), ""))
	}
	if get := h.HTTPGet; get != nil {
		n++
		v.target(at.Child("httpGet", "port"), c, get.Port)
		v.check(get.Scheme == v1.URISchemeHTTP || get.Scheme == v1.URISchemeHTTPS,
			field.NotSupported(at.Child("httpGet", "scheme"), get.Scheme, []v1.URIScheme{v1.URISchemeHTTP, v1.URISchemeHTTPS}))
	}
	if h.TCPSocket != nil {
		n++
		v.target(at.Child("tcpSocket", "port"), c, h.TCPSocket.Port)
	}
	if grpc != nil {
		n++
		v.target(at.Child("grpc", "port"), c, intstr.FromInt32(grpc.Port))
	}
	if h.Sleep != nil {
		n++
	}
	v.check(n == 1, field.Required(at, "one action"))
}

// target checks a port by number, or by the name of one of the container's.
func (v *validator) target(at *field.Path, c *v1.Container, port intstr.IntOrString) {
	if _, err := plan.Port(c, port); err != nil {
		v.check(false, field.Invalid(at, port.String(), err.Error()))
	}
}

func (v *validator) absolute(at *field.Path, p string) {
	v.check(path.IsAbs(p) && !slices.Contains(strings.Split(p, "/"), ".."),
		field.Invalid(at, p, "must be an absolute path without .."))
}

func (v *validator) resources(at *field.Path, list v1.ResourceList) {
	const mostCPUs = 1 << 20 // the largest numbers would overflow
	cpu, memory := list.Cpu(), list.Memory()
	v.check(cpu.Sign() >= 0 && cpu.CmpInt64(mostCPUs) <= 0,
		field.Invalid(at.Child("cpu"), cpu.String(), "is no number of CPUs"))
	v.check(memory.Sign() >= 0, field.Invalid(at.Child("memory"), memory.String(), "is negative"))
}

// unique checks that a name is not in a set, and adds it.
func (v *validator) unique(at *field.Path, name string, set sets.Set[string]) {
	v.check(!set.Has(name), field.Duplicate(at, name))
	set.Insert(name)
}

func (v *validator) all(at *field.Path, value any, problems []string) {
	for _, p := range problems {
		v.check(false, field.Invalid(at, value, p))
	}
}

// check notes an error if something is not as it must be.
func (v *validator) check(ok bool, e *field.Error) {
	if !ok {
		v.errs = append(v.errs, e)
	}
}
