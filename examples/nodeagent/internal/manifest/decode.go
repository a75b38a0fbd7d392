// Package manifest reads pods from manifest files, as the kubelet reads its static pods.
//
// A file holds one or more pods as YAML or JSON. Decode says what is wrong with a pod by the path of the field. A
// Source watches a directory; a file with an error hurts no other, and its last good content stays in force.
package manifest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
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
func Decode(content []byte, nodeName string) ([]*v1.Pod, error) {
	var pods []*v1.Pod
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var pod *v1.Pod
		if err == nil {
			pod, err = decodePod(document, nodeName)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		pods = append(pods, pod)
	}
	if len(pods) == 0 {
		return nil, errors.New("there is no pod in it")
	}
	return pods, nil
}

func decodePod(document []byte, nodeName string) (_ *v1.Pod, err error) {
	var kind metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, fmt.Errorf("is no object in YAML: %w", err)
	}
	defer func() {
		if err != nil {
			err = podError{err, kind.ObjectMeta}
		}
	}()
	if kind.APIVersion != "v1" || kind.Kind != "Pod" {
		return nil, fmt.Errorf("apiVersion %q, kind %q: only Pods of v1 can be run", kind.APIVersion, kind.Kind)
	}
	decoder := goyaml.NewDecoder(bytes.NewReader(document)) // the other one stops where the object ends
	for _, want := range []error{nil, io.EOF} {
		if err := decoder.Decode(new(goyaml.Node)); !errors.Is(err, want) {
			return nil, errors.New("there is something after it")
		}
	}
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict(document, pod); err != nil {
		return nil, fmt.Errorf("is no Pod: %w", err)
	}
	// Neither a status, which "kubectl get -o yaml" adds, nor what is null or empty asks for anything.
	pod.Status = v1.PodStatus{}
	fields, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return nil, fmt.Errorf("is no Pod: %w", err)
	}
	without, errs := check(fields, "", nil)
	if len(without) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, IgnoredAnnotation, strings.Join(without, " "))
	}
	if len(errs) == 0 {
		setDefaults(pod, nodeName)
		errs = validate(pod)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("pod %s: %w", klog.KObj(pod), errs.ToAggregate())
	}
	return pod, nil
}

// uidOf returns the UID of a pod that has none. It depends on the node and the pod's name only, so that a changed
// manifest changes the pod instead of replacing it, and so that an agent that starts again knows its pods.
func uidOf(nodeName, namespace, name string) types.UID {
	sum := sha256.Sum256([]byte(nodeName + "/" + namespace + "/" + name))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8 is for schemes of one's own
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}
