// Package manifest reads pods from manifest files, as the kubelet reads its static pods.
//
// A file holds one or more pods as YAML or JSON. Decode says what is wrong with a pod by the path of the field. A
// Source watches a directory; a file with an error hurts no other, and its last good content stays in force.
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
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
)

// IgnoredAnnotation names the fields of a manifest that mean nothing here.
const IgnoredAnnotation = "nodeagent.kubepleg.dev/ignored"

// podError is an error in a pod whose name is known.
type podError struct {
	error
	metav1.ObjectMeta
}

// Decode returns the pods in a file's content, with their defaults set. nodeName is part of the UIDs of those that
// have none. It fails as a whole.
func Decode(content []byte, nodeName string) (pods []*v1.Pod, err error) {
	documents := goyaml.NewDecoder(bytes.NewReader(content)) // it refuses what follows one, as that of pods does not
	for n := 1; ; n++ {
		var document goyaml.Node
		err := documents.Decode(&document)
		switch {
		case errors.Is(err, io.EOF) && len(pods) == 0:
			return nil, errors.New("there is no pod in it")
		case errors.Is(err, io.EOF):
			return pods, nil
		case err == nil && document.Content[0].Tag == "!!null":
			continue
		}
		var pod *v1.Pod
		if err == nil {
			pod, err = decodePod(&document, nodeName)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		pods = append(pods, pod)
	}
}

func decodePod(document *goyaml.Node, nodeName string) (_ *v1.Pod, err error) {
	text, err := goyaml.Marshal(document)
	if err != nil {
		return nil, err
	}
	var kind metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return nil, fmt.Errorf("is no object: %w", err)
	}
	defer func() {
		if err != nil {
			err = podError{err, kind.ObjectMeta}
		}
	}()
	if kind.APIVersion != "v1" || kind.Kind != "Pod" {
		return nil, fmt.Errorf("apiVersion %q, kind %q: only Pods of v1 can be run", kind.APIVersion, kind.Kind)
	}
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		return nil, fmt.Errorf("is no Pod: %w", err)
	}
	// Neither a status, which "kubectl get -o yaml" adds, nor what is null or empty asks for anything.
	pod.Status = v1.PodStatus{}
	fields, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return nil, fmt.Errorf("is no Pod: %w", err)
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
	if len(c.errs) > 0 {
		return nil, fmt.Errorf("pod %s: %w", klog.KObj(pod), c.errs.ToAggregate())
	}
	return pod, nil
}

// setDefaults sets what Kubernetes' API server sets in a new pod, of the fields that the agent uses.
func setDefaults(pod *v1.Pod, nodeName string) {
	pod.Namespace = cmp.Or(pod.Namespace, v1.NamespaceDefault)
	if pod.UID == "" {
		// It depends on the node and the pod's name only, so that a changed manifest changes the pod instead of replacing
		// it, and so that an agent that starts again knows its pods.
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
