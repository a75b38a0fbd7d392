package manifest

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// longestNames is how long the namespace, the name and the UID of a pod may be together: a file of its status has them
// in its name, which may have 255 bytes.
const longestNames = 255 - len("__.json.tmp")

// ValidateNames returns what is wrong with a pod's names, which become parts of paths and cgroups.
func ValidateNames(pod *v1.Pod) field.ErrorList {
	meta := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, meta)
	for _, problem := range validation.IsDNS1123Label(strings.ToLower(string(pod.UID))) {
		errs = append(errs, field.Invalid(meta.Child("uid"), pod.UID, problem))
	}
	if others := len(pod.Namespace) + len(pod.UID); others+len(pod.Name) > longestNames {
		errs = append(errs, field.TooLong(meta.Child("name"), pod.Name, longestNames-others))
	}
	return errs
}

// validate returns what is wrong with a pod whose fields are right, each by itself.
func validate(pod *v1.Pod) field.ErrorList {
	errs, spec := ValidateNames(pod), field.NewPath("spec")
	check := func(ok bool, e *field.Error) {
		if !ok {
			errs = append(errs, e)
		}
	}
	unique := func(among sets.Set[string], name string, at *field.Path) {
		check(!among.Has(name), field.Duplicate(at, name))
		among.Insert(name)
	}
	for key := range pod.Annotations {
		check(!strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix),
			field.Forbidden(field.NewPath("metadata", "annotations").Key(key), "appArmorProfile is a field now"))
	}
	volumes, names := sets.New[string](), sets.New[string]()
	for i, vol := range pod.Spec.Volumes {
		unique(volumes, vol.Name, spec.Child("volumes").Index(i).Child("name"))
	}
	check(len(pod.Spec.Containers) > 0, field.Required(spec.Child("containers"), "a pod has a container"))
	for i, c := range plan.Containers(pod) {
		at, actions := spec.Child("initContainers").Index(i), handlers(c)
		if n := i - len(pod.Spec.InitContainers); n >= 0 {
			at = spec.Child("containers").Index(n)
		} else if !plan.IsSidecar(c) {
			check(len(actions) == 0, field.Forbidden(at, "probes and hooks are only of a sidecar"))
		}
		unique(names, c.Name, at.Child("name"))
		mounts := sets.New[string]()
		for j, m := range c.VolumeMounts {
			at := at.Child("volumeMounts").Index(j)
			check(volumes.Has(m.Name), field.NotFound(at.Child("name"), m.Name))
			unique(mounts, m.MountPath, at.Child("mountPath"))
		}
		for j, p := range c.Ports {
			check(p.HostPort == 0 || pod.Spec.HostNetwork && p.HostPort == p.ContainerPort, field.Forbidden(
				at.Child("ports").Index(j).Child("hostPort"), "only with hostNetwork, and the same as containerPort"))
		}
		for _, h := range actions {
			for _, port := range ports(h) {
				_, err := plan.Port(c, port)
				check(err == nil, field.Invalid(at, port.String(), fmt.Sprint(err)))
			}
		}
	}
	return errs
}

// handlers returns what the probes and the hooks of a container do.
func handlers(c *v1.Container) (all []v1.LifecycleHandler) {
	for _, kind := range plan.ProbeKinds {
		if p := plan.Probe(c, kind); p != nil {
			all = append(all, v1.LifecycleHandler{Exec: p.Exec, HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket})
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				all = append(all, *h)
			}
		}
	}
	return all
}

// ports returns the ports that a probe or a hook names.
func ports(h v1.LifecycleHandler) (ports []intstr.IntOrString) {
	if h.HTTPGet != nil {
		ports = append(ports, h.HTTPGet.Port)
	}
	if h.TCPSocket != nil {
		ports = append(ports, h.TCPSocket.Port)
	}
	return ports
}
