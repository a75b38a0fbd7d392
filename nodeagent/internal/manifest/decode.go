// Package manifest reads pods from manifest files, as the kubelet reads its static pods.
//
// A file contains one pod as YAML or JSON. Errors of Decode name the field by its path. A Source
// watches a directory. If a file contains an error, other files are not affected, and the file's
// last valid content stays in use.
package manifest

import (
	"bytes"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/google/uuid"
	goyaml "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// IgnoredAnnotation is the annotation that lists the ignored fields of a manifest. These fields
// have no meaning on a single node.
const IgnoredAnnotation = "nodeagent.kubepleg.dev/ignored"

// Decode returns the pod in a file's content, with defaults set. If the manifest contains no UID,
// Decode derives a UID from the namespace, the name and nodeName. If Decode fails, it still returns
// a pod, which contains the name that could be read.
//
// As in the API server, the types of values must match: a number or a boolean is no string, so that
// 0022 or yes without quotes is an error.
func Decode(content []byte, nodeName string) (pod *v1.Pod, err error) {
	text, isYAML := content, !stdjson.Valid(content)
	if isYAML {
		if text, err = yaml.YAMLToJSONStrict(content); err != nil { // converts the first document
			return &v1.Pod{}, fmt.Errorf("is no object in YAML: %w", err)
		}
	}
	named := &metav1.PartialObjectMetadata{}
	err = json.UnmarshalCaseSensitivePreserveInts(text, named)
	pod = &v1.Pod{ObjectMeta: named.ObjectMeta}
	switch {
	case err != nil:
		return pod, fmt.Errorf("is no Pod: %w", err)
	case named.APIVersion != "v1" || named.Kind != "Pod":
		return pod, fmt.Errorf("apiVersion %q, kind %q: only Pods of v1 can be run", named.APIVersion, named.Kind)
	case isYAML && !isLast(content):
		return pod, errors.New("there is something after the pod")
	}
	unknown, err := json.UnmarshalStrict(text, pod)
	if err = utilerrors.NewAggregate(append(unknown, err)); err != nil {
		return pod, fmt.Errorf("is no Pod: %w", err)
	}
	// Drop the status, which "kubectl get -o yaml" adds. ToUnstructured drops null and empty
	// fields, which request nothing.
	pod.Status = v1.PodStatus{}
	fields, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return pod, err
	}
	var c checker
	c.fields(fields, "", nil)
	if len(c.ignored) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, IgnoredAnnotation, strings.Join(c.ignored, " "))
	}
	if len(c.errs) == 0 {
		setDefaults(pod, nodeName)
		c.errs = validate(pod)
	}
	return pod, c.errs.ToAggregate()
}

// isLast reports whether only empty documents follow the first document of a YAML text.
func isLast(content []byte) bool {
	documents := goyaml.NewDecoder(bytes.NewReader(content))
	for first := true; ; first = false {
		var d goyaml.Node
		switch err := documents.Decode(&d); {
		case errors.Is(err, io.EOF):
			return true
		case err != nil || !first && d.Content[0].Tag != "!!null":
			return false
		}
	}
}

// setDefaults sets the API server's defaults in the fields that the agent uses.
func setDefaults(pod *v1.Pod, nodeName string) {
	pod.Namespace = cmp.Or(pod.Namespace, v1.NamespaceDefault)
	if pod.UID == "" {
		// The UID depends only on the node, the namespace and the name. Therefore, a changed
		// manifest changes the pod instead of replacing it, and a restarted agent recognizes its
		// pods.
		pod.UID = types.UID(uuid.NewSHA1(uuid.Nil, []byte(nodeName+"/"+pod.Namespace+"/"+pod.Name)).String())
	}
	spec := &pod.Spec
	spec.NodeName = nodeName
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, v1.RestartPolicyAlways)
	spec.TerminationGracePeriodSeconds = cmp.Or(spec.TerminationGracePeriodSeconds,
		ptr.To[int64](v1.DefaultTerminationGracePeriodSeconds))
	if *spec.TerminationGracePeriodSeconds < 0 {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	spec.SecurityContext = cmp.Or(spec.SecurityContext, &v1.PodSecurityContext{})
	for i := range spec.Volumes {
		if vol := &spec.Volumes[i]; vol.VolumeSource == (v1.VolumeSource{}) {
			vol.EmptyDir = &v1.EmptyDirVolumeSource{}
		}
	}
	for _, c := range plan.Containers(pod) {
		setContainerDefaults(c)
	}
}

func setContainerDefaults(c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
		if name, err := reference.ParseNormalizedNamed(c.Image); err == nil { // another name cannot be pulled
			if tagged, ok := reference.TagNameOnly(name).(reference.Tagged); ok && tagged.Tag() == "latest" {
				c.ImagePullPolicy = v1.PullAlways
			}
		}
	}
	requests := v1.ResourceList{}
	maps.Copy(requests, c.Resources.Limits)
	maps.Copy(requests, c.Resources.Requests)
	c.Resources.Requests = requests
	for _, list := range []v1.ResourceList{c.Resources.Limits, requests} {
		for name, quantity := range list {
			quantity.RoundUp(resource.Milli)
			list[name] = quantity
		}
	}
	for _, kind := range plan.ProbeKinds {
		if p := plan.Probe(c, kind); p != nil {
			p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
			p.PeriodSeconds = cmp.Or(p.PeriodSeconds, 10)
			p.SuccessThreshold = cmp.Or(p.SuccessThreshold, 1)
			p.FailureThreshold = cmp.Or(p.FailureThreshold, 3)
			if p.GRPC != nil {
				p.GRPC.Service = cmp.Or(p.GRPC.Service, new(string))
			}
		}
	}
}

// supported lists the fields of an object that a manifest may contain, by the path or the name of
// the object. The agent refuses all other fields. An object without an entry may contain any field.
var supported = map[string]string{
	"":                     "apiVersion kind metadata spec status",
	"metadata":             "name namespace uid labels annotations",
	"spec.securityContext": "runAsUser runAsGroup runAsNonRoot supplementalGroups fsGroup seccompProfile appArmorProfile",
	"spec": "hostname hostNetwork hostPID hostIPC shareProcessNamespace restartPolicy dnsPolicy os hostAliases " +
		"terminationGracePeriodSeconds priorityClassName securityContext volumes initContainers containers " +
		"automountServiceAccountToken hostUsers",
	"os":          "name",
	"volumes":     "name hostPath emptyDir",
	"hostAliases": "ip hostnames",
	"hostPath":    "path type",
	"emptyDir":    "medium",

	"initContainers":  container + " restartPolicy",
	"containers":      container,
	"env":             "name value valueFrom",
	"valueFrom":       "fieldRef",
	"fieldRef":        "apiVersion fieldPath",
	"ports":           "name containerPort hostPort protocol",
	"resources":       "limits requests",
	"limits":          "cpu memory",
	"requests":        "cpu memory",
	"volumeMounts":    "name mountPath readOnly mountPropagation",
	"seccompProfile":  "type",
	"appArmorProfile": "type",
	"securityContext": "privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem " +
		"allowPrivilegeEscalation capabilities seccompProfile appArmorProfile",

	"lifecycle":      "postStart preStop",
	"postStart":      "exec httpGet sleep",
	"preStop":        "exec httpGet sleep",
	"livenessProbe":  probe + " terminationGracePeriodSeconds",
	"startupProbe":   probe + " terminationGracePeriodSeconds",
	"readinessProbe": probe,
	"exec":           "command",
	"httpGet":        "path port host scheme httpHeaders",
	"tcpSocket":      "port host",
	"grpc":           "port service",
	"sleep":          "seconds",
}

const (
	container = "name image imagePullPolicy command args workingDir env ports resources securityContext " +
		"volumeMounts lifecycle livenessProbe readinessProbe startupProbe stdin stdinOnce tty"
	probe = "exec httpGet tcpSocket grpc initialDelaySeconds periodSeconds timeoutSeconds successThreshold " +
		"failureThreshold"
)

// ignored lists the fields of an object that have no meaning on a single node, and protect no pod.
var ignored = map[string]string{
	"metadata": "creationTimestamp finalizers generateName generation managedFields ownerReferences " +
		"resourceVersion selfLink",
	"spec": "affinity enableServiceLinks nodeSelector preemptionPolicy priority schedulerName tolerations " +
		"topologySpreadConstraints",
	"spec.securityContext": "fsGroupChangePolicy",
	"initContainers":       ignoredOfContainer,
	"containers":           ignoredOfContainer,
	"requests":             "ephemeral-storage",
}

const ignoredOfContainer = "resizePolicy terminationMessagePath terminationMessagePolicy"

// checker finds unsupported fields, and fields to ignore.
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
	object := in
	if _, found := supported[in]; !found {
		object = in[strings.LastIndex(in, ".")+1:]
	}
	known, limited := supported[object]
	for _, key := range slices.Sorted(maps.Keys(values)) {
		child := at.Child(key)
		if object == "limits" || object == "requests" {
			child = at.Key(key)
		}
		switch {
		case slices.Contains(strings.Fields(ignored[object]), key):
			c.ignored = append(c.ignored, child.String())
		case limited && !slices.Contains(strings.Fields(known), key):
			c.errs = append(c.errs, field.Forbidden(child, "this agent does not support it"))
		default:
			c.value(values[key], strings.TrimPrefix(in+"."+key, "."), child)
		}
	}
}
