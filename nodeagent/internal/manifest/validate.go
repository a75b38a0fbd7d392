package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// ValidateNames returns the errors in a pod's metadata. The pod's names and its UID become parts of
// paths and cgroups.
func ValidateNames(pod *v1.Pod) field.ErrorList {
	meta := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, meta)
	for _, problem := range validation.IsDNS1123Label(strings.ToLower(string(pod.UID))) {
		errs = append(errs, field.Invalid(meta.Child("uid"), pod.UID, problem))
	}
	return errs
}

// validate returns the errors in a pod with defaults: what the API server refuses, and values that
// this agent does not support. Paths are those of the API server.
func validate(pod *v1.Pod) field.ErrorList {
	v := validator{pod: pod, errs: ValidateNames(pod), volumes: sets.New[string](), containers: sets.New[string]()}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		old := strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) ||
			strings.HasPrefix(key, v1.SeccompContainerAnnotationKeyPrefix) || key == v1.SeccompPodAnnotationKey
		v.check(!old, field.Forbidden(field.NewPath("metadata", "annotations").Key(key), "it is a field now"))
	}
	v.spec(&pod.Spec, field.NewPath("spec"))
	v.ignored(pod)
	slices.SortStableFunc(v.errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
	return v.errs
}

// validator collects the errors in a pod.
type validator struct {
	pod                 *v1.Pod
	errs                field.ErrorList
	volumes, containers sets.Set[string] // the names that were seen
}

func (v *validator) check(ok bool, e *field.Error) {
	if !ok {
		v.errs = append(v.errs, e)
	}
}

func (v *validator) valid(value any, problems []string, at *field.Path) {
	for _, problem := range problems {
		v.errs = append(v.errs, field.Invalid(at, value, problem))
	}
}

// within checks that a number, if it is set, is from least to the largest int32.
func (v *validator) within(value *int64, least int, at *field.Path) {
	if value != nil && (*value < int64(least) || *value > math.MaxInt32) {
		v.errs = append(v.errs, field.Invalid(at, *value, validation.InclusiveRangeError(least, math.MaxInt32)))
	}
}

func (v *validator) unique(among sets.Set[string], name string, at *field.Path) {
	v.check(!among.Has(name), field.Duplicate(at, name))
	among.Insert(name)
}

// oneOf checks that a value is the zero value or one of the values.
func oneOf[T ~string](v *validator, value T, at *field.Path, values ...T) {
	v.check(value == "" || slices.Contains(values, value), field.NotSupported(at, value, values))
}

// exactlyOneOf checks that a value is one of the values.
func exactlyOneOf[T ~string](v *validator, value T, at *field.Path, values ...T) {
	v.check(value != "", field.Required(at, ""))
	oneOf(v, value, at, values...)
}

// path checks a path that becomes a path on the host.
func (v *validator) path(p string, at *field.Path) {
	v.check(path.IsAbs(p) && !slices.Contains(strings.Split(p, "/"), ".."),
		field.Invalid(at, p, "must be absolute and must not contain '..'"))
}

func (v *validator) spec(spec *v1.PodSpec, at *field.Path) {
	oneOf(v, spec.RestartPolicy, at.Child("restartPolicy"),
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	oneOf(v, spec.DNSPolicy, at.Child("dnsPolicy"), v1.DNSDefault, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet)
	v.within(spec.TerminationGracePeriodSeconds, 0, at.Child("terminationGracePeriodSeconds"))
	if spec.Hostname != "" {
		v.valid(spec.Hostname, validation.IsDNS1123Label(spec.Hostname), at.Child("hostname"))
	}
	if spec.PriorityClassName != "" {
		v.valid(spec.PriorityClassName, validation.IsDNS1123Subdomain(spec.PriorityClassName), at.Child("priorityClassName"))
	}
	if spec.OS != nil {
		v.check(spec.OS.Name == v1.Linux, field.NotSupported(at.Child("os", "name"), spec.OS.Name, []v1.OSName{v1.Linux}))
	}
	v.check(!ptr.Deref(spec.AutomountServiceAccountToken, false), field.NotSupported(
		at.Child("automountServiceAccountToken"), true, []string{"false"}))
	v.check(ptr.Deref(spec.HostUsers, true), field.NotSupported(at.Child("hostUsers"), false, []string{"true"}))
	v.check(!spec.HostPID || !ptr.Deref(spec.ShareProcessNamespace, false),
		field.Invalid(at.Child("shareProcessNamespace"), true, "cannot be enabled with hostPID"))

	security := at.Child("securityContext")
	v.profiles(spec.SecurityContext.SeccompProfile, spec.SecurityContext.AppArmorProfile, security)
	v.within(spec.SecurityContext.RunAsUser, 0, security.Child("runAsUser"))
	v.within(spec.SecurityContext.RunAsGroup, 0, security.Child("runAsGroup"))
	v.within(spec.SecurityContext.FSGroup, 0, security.Child("fsGroup"))
	for i, group := range spec.SecurityContext.SupplementalGroups {
		v.within(&group, 0, security.Child("supplementalGroups").Index(i))
	}
	if policy := spec.SecurityContext.FSGroupChangePolicy; policy != nil {
		exactlyOneOf(v, *policy, security.Child("fsGroupChangePolicy"), v1.FSGroupChangeOnRootMismatch,
			v1.FSGroupChangeAlways)
	}
	for i, alias := range spec.HostAliases { // aliases become lines of /etc/hosts
		at := at.Child("hostAliases").Index(i)
		v.errs = append(v.errs, validation.IsValidIP(at.Child("ip"), alias.IP)...)
		for j, name := range alias.Hostnames {
			v.valid(name, validation.IsDNS1123Subdomain(name), at.Child("hostnames").Index(j))
		}
	}
	for i := range spec.Volumes {
		v.volume(&spec.Volumes[i], at.Child("volumes").Index(i))
	}
	v.check(len(spec.Containers) > 0, field.Required(at.Child("containers"), ""))
	hostPorts := sets.New[string]()
	for i := range spec.Containers {
		v.container(&spec.Containers[i], hostPorts, at.Child("containers").Index(i))
	}
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], at.Child("initContainers").Index(i)
		v.container(c, sets.New[string](), at)
		v.check(c.RestartPolicy == nil || plan.IsSidecar(c), field.NotSupported(at.Child("restartPolicy"),
			ptr.Deref(c.RestartPolicy, ""), []v1.ContainerRestartPolicy{v1.ContainerRestartPolicyAlways}))
		for name, set := range map[string]bool{"lifecycle": c.Lifecycle != nil, "livenessProbe": c.LivenessProbe != nil,
			"readinessProbe": c.ReadinessProbe != nil, "startupProbe": c.StartupProbe != nil} {
			v.check(!set || plan.IsSidecar(c),
				field.Forbidden(at.Child(name), "may not be set for init containers without restartPolicy=Always"))
		}
	}
}

// profiles checks profiles. A custom profile needs a file on the node.
func (v *validator) profiles(seccomp *v1.SeccompProfile, appArmor *v1.AppArmorProfile, at *field.Path) {
	if seccomp != nil {
		exactlyOneOf(v, seccomp.Type, at.Child("seccompProfile", "type"),
			v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined)
	}
	if appArmor != nil {
		exactlyOneOf(v, appArmor.Type, at.Child("appArmorProfile", "type"),
			v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined)
	}
}

func (v *validator) volume(vol *v1.Volume, at *field.Path) {
	v.valid(vol.Name, validation.IsDNS1123Label(vol.Name), at.Child("name"))
	v.unique(v.volumes, vol.Name, at.Child("name"))
	v.check(vol.HostPath == nil || vol.EmptyDir == nil,
		field.Forbidden(at.Child("hostPath"), "may not specify more than 1 volume type"))
	if vol.EmptyDir != nil {
		oneOf(v, vol.EmptyDir.Medium, at.Child("emptyDir", "medium"), v1.StorageMediumMemory)
	}
	if vol.HostPath != nil {
		v.path(vol.HostPath.Path, at.Child("hostPath", "path"))
		oneOf(v, ptr.Deref(vol.HostPath.Type, ""), at.Child("hostPath", "type"), v1.HostPathDirectory,
			v1.HostPathDirectoryOrCreate, v1.HostPathFile, v1.HostPathFileOrCreate, v1.HostPathSocket, v1.HostPathCharDev,
			v1.HostPathBlockDev)
	}
}

// container checks a container. hostPorts contains the host ports of the containers that run at the
// same time.
func (v *validator) container(c *v1.Container, hostPorts sets.Set[string], at *field.Path) {
	v.valid(c.Name, validation.IsDNS1123Label(c.Name), at.Child("name"))
	v.unique(v.containers, c.Name, at.Child("name"))
	v.check(c.Image != "", field.Required(at.Child("image"), ""))
	v.check(strings.TrimSpace(c.Image) == c.Image,
		field.Invalid(at.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	oneOf(v, c.ImagePullPolicy, at.Child("imagePullPolicy"), v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
	oneOf(v, c.TerminationMessagePolicy, at.Child("terminationMessagePolicy"),
		v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)
	v.ports(c, hostPorts, at.Child("ports"))
	for i, e := range c.Env {
		v.env(&e, at.Child("env").Index(i))
	}
	v.mounts(c, at.Child("volumeMounts"))
	v.resources(&c.Resources, at.Child("resources"))
	v.resizePolicies(c.ResizePolicy, at.Child("resizePolicy"))
	v.security(c.SecurityContext, at.Child("securityContext"))
	v.probe(c.LivenessProbe, at.Child("livenessProbe"))
	v.probe(c.StartupProbe, at.Child("startupProbe"))
	v.probe(c.ReadinessProbe, at.Child("readinessProbe"))
	for kind, p := range map[string]*v1.Probe{"livenessProbe": c.LivenessProbe, "startupProbe": c.StartupProbe} {
		v.check(p == nil || p.SuccessThreshold == 1, field.Invalid(at.Child(kind, "successThreshold"),
			ptr.Deref(p, v1.Probe{}).SuccessThreshold, "must be 1"))
	}
	if c.Lifecycle != nil {
		v.handler(c.Lifecycle.PostStart, nil, at.Child("lifecycle", "postStart"))
		v.handler(c.Lifecycle.PreStop, nil, at.Child("lifecycle", "preStop"))
	}
}

func (v *validator) ports(c *v1.Container, hostPorts sets.Set[string], at *field.Path) {
	names := sets.New[string]()
	for i, p := range c.Ports {
		at := at.Index(i)
		if p.Name != "" {
			v.valid(p.Name, validation.IsValidPortName(p.Name), at.Child("name"))
			v.unique(names, p.Name, at.Child("name"))
		}
		v.valid(p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)), at.Child("containerPort"))
		oneOf(v, p.Protocol, at.Child("protocol"), v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)
		if v.pod.Spec.HostNetwork { // every port is a port of the host
			v.check(p.HostPort == 0 || p.HostPort == p.ContainerPort, field.Invalid(at.Child("hostPort"), p.HostPort,
				"must match `containerPort` when `hostNetwork` is true"))
			v.unique(hostPorts, fmt.Sprintf("%s//%d", cmp.Or(p.Protocol, v1.ProtocolTCP), p.ContainerPort), at.Child("hostPort"))
		} else {
			v.check(p.HostPort == 0, field.Forbidden(at.Child("hostPort"), "this agent supports it only with hostNetwork"))
		}
	}
}

func (v *validator) env(e *v1.EnvVar, at *field.Path) {
	v.valid(e.Name, validation.IsRelaxedEnvVarName(e.Name), at.Child("name"))
	if e.ValueFrom == nil {
		return
	}
	at = at.Child("valueFrom")
	v.check(e.Value == "", field.Invalid(at, "", "may not be specified when `value` is not empty"))
	ref := e.ValueFrom.FieldRef
	if ref == nil {
		v.errs = append(v.errs, field.Required(at.Child("fieldRef"), ""))
		return
	}
	oneOf(v, ref.APIVersion, at.Child("fieldRef", "apiVersion"), "v1")
	_, ok := plan.Field(&v1.Pod{}, ref.FieldPath)
	v.check(ok, field.Invalid(at.Child("fieldRef", "fieldPath"), ref.FieldPath,
		"is no field that environment variables may have"))
	if _, key, found := strings.Cut(ref.FieldPath, "['"); found {
		key = strings.ToLower(strings.TrimSuffix(key, "']"))
		v.valid(ref.FieldPath, validation.IsQualifiedName(key), at.Child("fieldRef"))
	}
}

func (v *validator) mounts(c *v1.Container, at *field.Path) {
	paths := sets.New[string]()
	for i, m := range c.VolumeMounts {
		at := at.Index(i)
		v.check(v.volumes.Has(m.Name), field.NotFound(at.Child("name"), m.Name))
		v.path(m.MountPath, at.Child("mountPath"))
		v.check(!paths.Has(m.MountPath), field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		paths.Insert(m.MountPath)
		propagation := ptr.Deref(m.MountPropagation, v1.MountPropagationNone)
		exactlyOneOf(v, propagation, at.Child("mountPropagation"), v1.MountPropagationNone,
			v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional)
		v.check(propagation != v1.MountPropagationBidirectional || privileged(c.SecurityContext), field.Forbidden(
			at.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
	}
}

func (v *validator) resources(r *v1.ResourceRequirements, at *field.Path) {
	for name, list := range map[string]v1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for resource, quantity := range list {
			v.check(quantity.Sign() >= 0, field.Invalid(at.Child(name).Key(string(resource)), quantity.String(),
				"must be greater than or equal to 0"))
		}
	}
	for resource, limit := range r.Limits {
		request := r.Requests[resource]
		v.check(request.Cmp(limit) <= 0, field.Invalid(at.Child("requests"), request.String(),
			fmt.Sprintf("must be less than or equal to %s limit of %s", resource, limit.String())))
	}
}

func privileged(s *v1.SecurityContext) bool { return s != nil && ptr.Deref(s.Privileged, false) }

func (v *validator) security(s *v1.SecurityContext, at *field.Path) {
	if s == nil {
		return
	}
	v.within(s.RunAsUser, 0, at.Child("runAsUser"))
	v.within(s.RunAsGroup, 0, at.Child("runAsGroup"))
	v.profiles(s.SeccompProfile, s.AppArmorProfile, at)
	if ptr.Deref(s.AllowPrivilegeEscalation, true) {
		return
	}
	at = at.Child("allowPrivilegeEscalation")
	v.check(!privileged(s), field.Invalid(at, false, "cannot be false when `privileged` is true"))
	v.check(s.Capabilities == nil || !slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN"),
		field.Invalid(at, false, "cannot be false when `capabilities.add` contains CAP_SYS_ADMIN"))
}

func (v *validator) probe(p *v1.Probe, at *field.Path) {
	if p == nil {
		return
	}
	for name, value := range map[string]int32{"initialDelaySeconds": p.InitialDelaySeconds,
		"timeoutSeconds": p.TimeoutSeconds, "periodSeconds": p.PeriodSeconds, "successThreshold": p.SuccessThreshold,
		"failureThreshold": p.FailureThreshold} {
		v.within(ptr.To(int64(value)), 0, at.Child(name))
	}
	v.within(p.TerminationGracePeriodSeconds, 1, at.Child("terminationGracePeriodSeconds"))
	v.handler(&v1.LifecycleHandler{Exec: p.Exec, HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket}, p.GRPC, at)
}

// handler checks the action of a probe or a hook. h may be nil.
func (v *validator) handler(h *v1.LifecycleHandler, grpc *v1.GRPCAction, at *field.Path) {
	if h == nil {
		return
	}
	var kinds []string
	add := func(kind string) *field.Path {
		kinds = append(kinds, kind)
		return at.Child(kind)
	}
	if h.Exec != nil {
		v.check(len(h.Exec.Command) > 0, field.Required(add("exec").Child("command"), ""))
	}
	if h.HTTPGet != nil {
		at := add("httpGet")
		v.port(h.HTTPGet.Port, at.Child("port"))
		oneOf(v, h.HTTPGet.Scheme, at.Child("scheme"), v1.URISchemeHTTP, v1.URISchemeHTTPS)
		for _, header := range h.HTTPGet.HTTPHeaders {
			v.valid(header.Name, validation.IsHTTPHeaderName(header.Name), at.Child("httpHeaders"))
		}
	}
	if h.TCPSocket != nil {
		v.port(h.TCPSocket.Port, add("tcpSocket").Child("port"))
	}
	if grpc != nil {
		v.port(intstr.FromInt32(grpc.Port), add("grpc").Child("port"))
	}
	if h.Sleep != nil {
		seconds, grace, at := h.Sleep.Seconds, *v.pod.Spec.TerminationGracePeriodSeconds, add("sleep")
		v.check(seconds >= 0 && seconds <= grace, field.Invalid(at, seconds,
			fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace)))
	}
	v.check(len(kinds) > 0, field.Required(at, "must specify a handler type"))
	for _, kind := range kinds[min(1, len(kinds)):] {
		v.check(false, field.Forbidden(at.Child(kind), "may not specify more than 1 handler type"))
	}
}

func (v *validator) port(port intstr.IntOrString, at *field.Path) {
	if port.Type == intstr.String {
		v.valid(port.StrVal, validation.IsValidPortName(port.StrVal), at)
	} else {
		v.valid(port.IntVal, validation.IsValidPortNum(port.IntValue()), at)
	}
}
