// Package manifests compares how the node agent and the kubelet decode manifests.
package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // registers the types of legacyscheme
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
)

// The node agent accepts only manifests that the kubelet accepts, and makes the same pod of them: in
// the kubelet's pod, each field of the agent's pod has the same value. Both refuse the specifications
// in testdata/refused, one per line.
func TestManifests(t *testing.T) {
	capabilities.Setup(true, 0) // containers may be privileged
	var paths []string
	for _, pattern := range []string{"manifests/*.yaml", "e2e/testdata/kubeadm/*.yaml"} {
		found, err := filepath.Glob("../../../nodeagent/" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		paths = append(paths, found...)
	}
	good := len(paths)
	for _, list := range []string{"testdata/accepted", "testdata/refused"} {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for spec := range strings.Lines(string(text)) {
			path := filepath.Join(t.TempDir(), "a.yaml")
			manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {x: z}}\nspec: " + spec
			if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, path)
		}
		if list == "testdata/accepted" {
			good = len(paths)
		}
	}
	for i := range paths {
		paths[i], _ = filepath.Abs(paths[i])
	}
	for i, agent := range decodeByAgent(t, paths) {
		content, err := os.ReadFile(paths[i])
		if err != nil {
			t.Fatal(err)
		}
		pod, err := decode(content)
		if (err == nil) != (i < good) || (agent.Error == "") != (i < good) {
			t.Errorf("the kubelet's error: %v; the agent's error: %q; of\n%s", err, agent.Error, content)
		} else if err == nil {
			for _, difference := range agent.differences(pod) {
				t.Errorf("%s; of\n%s", difference, content)
			}
		}
	}
}

// result is what the agent makes of a manifest.
type result struct {
	Pod   *v1.Pod
	Error string
}

// decodeByAgent returns the agent's results for manifest files.
func decodeByAgent(t *testing.T, paths []string) []result {
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "./internal/manifest/decode"}, paths...)...)
	cmd.Dir, cmd.Env = "../../../nodeagent", append(os.Environ(), "GOWORK=off")
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	results, decoder := make([]result, len(paths)), json.NewDecoder(bytes.NewReader(output))
	for i := range results {
		if err := decoder.Decode(&results[i]); err != nil {
			t.Fatal(err)
		}
	}
	return results
}

// differences returns the fields of the agent's pod that have another value in the kubelet's pod.
func (r result) differences(pod *v1.Pod) []string {
	r.Pod.UID, r.Pod.APIVersion, r.Pod.Kind = "", "", ""
	delete(r.Pod.Annotations, "nodeagent.kubepleg.dev/ignored")
	want, _ := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(r.Pod)
	got, _ := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(pod)
	return differences("", want, got)
}

// decode decodes, completes and validates a manifest with the kubelet's functions.
func decode(content []byte) (*v1.Pod, error) {
	text, err := yaml.ToJSON(content)
	if err != nil {
		return nil, err
	}
	object, err := k8sruntime.Decode(legacyscheme.Codecs.UniversalDecoder(), text)
	pod, ok := object.(*api.Pod)
	if err != nil || !ok {
		return nil, fmt.Errorf("%T is no pod: %w", object, err)
	}
	pod.Spec.NodeName = "node"
	if pod.Namespace == "" {
		pod.Namespace = v1.NamespaceDefault
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
	converted := &v1.Pod{}
	err = errors.Join(validation.ValidatePodCreate(pod, options).ToAggregate(),
		corev1.Convert_core_Pod_To_v1_Pod(pod, converted, nil))
	if _, resource, _ := podutil.HasAPIObjectReference(pod); resource != "" {
		err = errors.Join(err, fmt.Errorf("static pods may not reference %s", resource))
	}
	return converted, err
}

// differences returns the fields of want that have another value in got.
func differences(at string, want, got any) (texts []string) {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(w)) {
			texts = append(texts, differences(at+"."+key, w[key], g[key])...)
		}
	case []any:
		g, _ := got.([]any)
		for i := range max(len(w), len(g)) {
			if i >= len(w) || i >= len(g) {
				return append(texts, fmt.Sprintf("%s has %d elements, in the kubelet %d", at, len(w), len(g)))
			}
			texts = append(texts, differences(fmt.Sprint(at, i), w[i], g[i])...)
		}
	default:
		if fmt.Sprint(want) != fmt.Sprint(got) {
			texts = append(texts, fmt.Sprintf("%s is %v, in the kubelet %v", at, want, got))
		}
	}
	return texts
}
