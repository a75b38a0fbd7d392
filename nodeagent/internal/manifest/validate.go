package manifest

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// supported maps the path or the name of a field to the subfields that a manifest may contain. The
// agent refuses all other subfields. A field without an entry may contain anything. These rules may
// follow a subfield:
//
//	=a|b   the value is a or b
//	>n     the value is a number from n to 2147483647, or a quantity that is not negative
//	:kind  the value passes checks[kind]
//	!      the field is required; of several fields separated by "|", exactly one is required
//	~      the field is ignored: it has no meaning on a single node, and protects no pod
var supported = map[string]string{
	"": "apiVersion kind metadata spec status",
	"metadata": "name namespace uid labels annotations creationTimestamp~ finalizers~ generateName~ generation~ " +
		"managedFields~ ownerReferences~ resourceVersion~ selfLink~",
	"spec": "hostname:label hostNetwork hostPID hostIPC shareProcessNamespace restartPolicy=Always|OnFailure|Never " +
		"terminationGracePeriodSeconds>0 priorityClassName securityContext volumes initContainers containers os " +
		"dnsPolicy=Default|ClusterFirst|ClusterFirstWithHostNet automountServiceAccountToken=false hostUsers=true " +
		"affinity~ enableServiceLinks~ nodeSelector~ preemptionPolicy~ priority~ schedulerName~ tolerations~ " +
		"topologySpreadConstraints~ hostAliases",
	"spec.securityContext": "runAsUser>0 runAsGroup>0 runAsNonRoot supplementalGroups fsGroup>0 fsGroupChangePolicy~ " +
		"seccompProfile appArmorProfile",
	"os": "name=linux",

	"volumes":     "name:label hostPath|emptyDir!",
	"hostAliases": "ip hostnames",
	"hostPath":    "path:path type=|Directory|DirectoryOrCreate|File|FileOrCreate|Socket|CharDevice|BlockDevice",
	"emptyDir":    "medium=|Memory",

	"initContainers": container + " restartPolicy=Always",
	"containers":     container,
	"env":            "name:variable value valueFrom",
	"valueFrom":      "fieldRef!",
	"fieldRef":       "apiVersion=|v1 fieldPath:field",
	"ports":          "name:port containerPort:port hostPort protocol=TCP|UDP|SCTP",
	"resources":      "limits requests",
	"limits":         "cpu>0 memory>0",
	"requests":       "cpu>0 memory>0 ephemeral-storage~",
	"volumeMounts":   "name mountPath:path readOnly mountPropagation=None|HostToContainer|Bidirectional",
	"securityContext": "privileged runAsUser>0 runAsGroup>0 runAsNonRoot readOnlyRootFilesystem " +
		"allowPrivilegeEscalation capabilities seccompProfile appArmorProfile",
	"seccompProfile":  profile,
	"appArmorProfile": profile,

	"lifecycle":      "postStart preStop",
	"postStart":      hook,
	"preStop":        hook,
	"livenessProbe":  probe + " successThreshold=1 terminationGracePeriodSeconds>1",
	"startupProbe":   probe + " successThreshold=1 terminationGracePeriodSeconds>1",
	"readinessProbe": probe + " successThreshold>1",
	"exec":           "command!",
	"httpGet":        "path port:port host scheme=HTTP|HTTPS httpHeaders",
	"tcpSocket":      "port:port host",
	"grpc":           "port:port service",
	"sleep":          "seconds>0",
}

const (
	container = "name:label image! imagePullPolicy=Always|IfNotPresent|Never command args workingDir env ports " +
		"resources securityContext volumeMounts lifecycle livenessProbe readinessProbe startupProbe stdin stdinOnce " +
		"tty resizePolicy~ terminationMessagePath~ terminationMessagePolicy~"
	profile = "type=RuntimeDefault|Unconfined" // not Localhost, which needs a file on the node
	hook    = "exec|httpGet|sleep!"
	probe   = "exec|httpGet|tcpSocket|grpc! initialDelaySeconds>0 periodSeconds>1 timeoutSeconds>1 failureThreshold>1"
)

// checks maps the kind of a rule to a function that returns the errors in a value.
var checks = map[string]func(string) []string{
	"label":    validation.IsDNS1123Label,
	"variable": validation.IsEnvVarName,
	"field": func(path string) []string {
		if _, ok := plan.Field(&v1.Pod{}, path); ok {
			return nil
		}
		return []string{"is no field that the environment may have"}
	},
	"port": func(port string) []string {
		n, err := strconv.Atoi(port)
		if err != nil {
			return validation.IsValidPortName(port)
		}
		return validation.IsValidPortNum(n)
	},
	"path": func(p string) []string {
		if path.IsAbs(p) && !slices.Contains(strings.Split(p, "/"), "..") {
			return nil
		}
		return []string{"must be an absolute path without .."}
	},
}

// checker finds unsupported fields, fields that break a rule, and fields to ignore.
type checker struct {
	errs    field.ErrorList
	ignored []string
}

// value checks all fields inside a value, in order. in is the path of the value without indexes.
func (c *checker) value(value any, in string, at *field.Path) {
	switch v := value.(type) {
	case []any:
		for i, element := range v {
			c.value(element, in, at.Index(i))
		}
	case map[string]any:
		c.fields(v, in, at)
	}
}

func (c *checker) fields(values map[string]any, in string, at *field.Path) {
	entry, limited := supported[in]
	if !limited {
		entry, limited = supported[in[strings.LastIndex(in, ".")+1:]]
	}
	rules := map[string]string{}
	for f := range strings.FieldsSeq(entry) {
		if names, required := strings.CutSuffix(f, "!"); required {
			choices := strings.Split(names, "|")
			for _, name := range choices {
				rules[name] = ""
			}
			there := slices.DeleteFunc(choices, func(name string) bool { return values[name] == nil })
			if len(there) != 1 {
				c.errs = append(c.errs, field.Required(at, "it has one "+names))
			}
			continue
		}
		end := strings.IndexAny(f+"=", "=>:~")
		rules[f[:end]] = f[end:]
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		child := at.Child(key)
		switch rule, known := rules[key]; {
		case limited && !known:
			c.errs = append(c.errs, field.Forbidden(child, "this agent does not support it"))
		case rule == "~":
			c.ignored = append(c.ignored, child.String())
		case rule == "":
			c.value(values[key], strings.TrimPrefix(in+"."+key, "."), child)
		default:
			c.rule(values[key], rule[0], rule[1:], child)
		}
	}
}

func (c *checker) rule(value any, rule byte, of string, at *field.Path) {
	switch text := fmt.Sprint(value); rule {
	case '=':
		if values := strings.Split(of, "|"); !slices.Contains(values, text) {
			c.errs = append(c.errs, field.NotSupported(at, value, values))
		}
	case '>':
		least, _ := strconv.ParseInt(of, 10, 64)
		n, isNumber := value.(int64) // if not, the value is a quantity
		if strings.HasPrefix(text, "-") || isNumber && (n < least || n > math.MaxInt32) {
			c.errs = append(c.errs, field.Invalid(at, value, fmt.Sprintf("must be from %d to %d", least, math.MaxInt32)))
		}
	case ':':
		for _, problem := range checks[of](text) {
			c.errs = append(c.errs, field.Invalid(at, value, problem))
		}
	}
}

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

// validate returns the errors in combinations of fields. checker has already checked each single
// field.
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
	for i, alias := range pod.Spec.HostAliases { // aliases become lines of /etc/hosts
		at := spec.Child("hostAliases").Index(i)
		errs = append(errs, validation.IsValidIP(at.Child("ip"), alias.IP)...)
		for j, name := range alias.Hostnames {
			for _, problem := range validation.IsDNS1123Subdomain(name) {
				errs = append(errs, field.Invalid(at.Child("hostnames").Index(j), name, problem))
			}
		}
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
			outwards := ptr.Deref(m.MountPropagation, v1.MountPropagationNone) == v1.MountPropagationBidirectional
			check(!outwards || c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false),
				field.Forbidden(at.Child("mountPropagation"), "only a privileged container changes the host's mounts"))
		}
		for j, e := range c.Env {
			check(e.Value == "" || e.ValueFrom == nil, field.Forbidden(at.Child("env").Index(j).Child("valueFrom"),
				"there is a value"))
		}
		for j, p := range c.Ports {
			check(p.HostPort == 0 || pod.Spec.HostNetwork && p.HostPort == p.ContainerPort, field.Forbidden(
				at.Child("ports").Index(j).Child("hostPort"), "only with hostNetwork, and the same as containerPort"))
		}
	}
	return errs
}
