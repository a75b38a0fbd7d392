package manifest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
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
		at := spec.Child("initContainers").Index(i)
		if n := i - len(pod.Spec.InitContainers); n >= 0 {
			at = spec.Child("containers").Index(n)
		} else if !plan.IsSidecar(c) {
			check(c.Lifecycle == nil && c.LivenessProbe == nil && c.ReadinessProbe == nil && c.StartupProbe == nil,
				field.Forbidden(at, "probes and hooks are only of a sidecar"))
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
	}
	return errs
}
