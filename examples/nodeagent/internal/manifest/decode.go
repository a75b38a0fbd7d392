// Package manifest reads pods from manifest files, as the kubelet reads its static pods.
//
// A file holds one or more pods as YAML or JSON. Decode says what is wrong with a pod by the path of the field. A
// Source watches a directory; a file with an error hurts no other, and its last good content stays in force.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
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
