// Package manifest reads pods from manifest files, as the kubelet reads its static pods.
//
// A file contains one pod as YAML or JSON. Errors of Decode name the field by its path. A Source
// watches a directory. If a file contains an error, other files are not affected, and the file's
// last valid content stays in use.
package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/google/uuid"
	goyaml "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
)

// IgnoredAnnotation is the annotation that lists the ignored fields of a manifest. These fields
// have no meaning on a single node.
const IgnoredAnnotation = "nodeagent.kubepleg.dev/ignored"

// Decode returns the pod in a file's content, with defaults set. If the manifest contains no UID,
// Decode derives a UID from the namespace, the name and nodeName. If Decode fails, it still returns
// a pod, which contains the name that could be read.
func Decode(content []byte, nodeName string) (pod *v1.Pod, err error) {
	if bytes.HasSuffix(content, []byte("\n---\n")) { // an empty second document
		content = content[:len(content)-len("---\n")]
	}
	named := &metav1.PartialObjectMetadata{}
	if err := yaml.Unmarshal(content, named); err != nil {
		return &v1.Pod{}, fmt.Errorf("is no object in YAML: %w", err)
	}
	pod = &v1.Pod{ObjectMeta: named.ObjectMeta}
	if named.APIVersion != "v1" || named.Kind != "Pod" {
		return pod, fmt.Errorf("apiVersion %q, kind %q: only Pods of v1 can be run", named.APIVersion, named.Kind)
	}
	documents := goyaml.NewDecoder(bytes.NewReader(content)) // yaml.Unmarshal stops after the first object
	for _, want := range []error{nil, io.EOF} {
		if err := documents.Decode(new(goyaml.Node)); !errors.Is(err, want) {
			return pod, errors.New("there is something after the pod")
		}
	}
	if err := yaml.UnmarshalStrict(content, pod); err != nil {
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
	spec.SecurityContext = cmp.Or(spec.SecurityContext, &v1.PodSecurityContext{})
	for _, c := range plan.Containers(pod) {
		setContainerDefaults(c)
	}
}

func setContainerDefaults(c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
		name := c.Image[strings.LastIndex(c.Image, "/")+1:]
		if _, tag, tagged := strings.Cut(name, ":"); (!tagged || tag == "latest") && !strings.Contains(name, "@") {
			c.ImagePullPolicy = v1.PullAlways
		}
	}
	requests := v1.ResourceList{}
	maps.Copy(requests, c.Resources.Limits)
	maps.Copy(requests, c.Resources.Requests)
	c.Resources.Requests = requests
	for _, kind := range plan.ProbeKinds {
		if p := plan.Probe(c, kind); p != nil {
			p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
			p.PeriodSeconds = cmp.Or(p.PeriodSeconds, 10)
			p.SuccessThreshold = cmp.Or(p.SuccessThreshold, 1)
			p.FailureThreshold = cmp.Or(p.FailureThreshold, 3)
		}
	}
}
