package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/capabilities"
)

var published = flag.String("manifests.published", "", "compare the pods in YAML and JSON files below this `folder`")

// TestPublished compares the pods and pod templates in published manifests, such as those of public
// repositories. The agent may refuse a pod that the kubelet accepts; the log counts its reasons.
func TestPublished(t *testing.T) {
	if *published == "" {
		t.Skip("needs -manifests.published")
	}
	capabilities.Setup(true, 0)
	files := map[string]string{} // by the text of a pod
	err := filepath.WalkDir(*published, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() ||
			!slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for {
			document, err := documents.Read()
			if err != nil {
				return nil
			}
			var object map[string]any
			if text, err := yaml.ToJSON(document); err != nil || json.Unmarshal(text, &object) != nil {
				continue // such as a template of a manifest
			}
			if object["kind"] == "Pod" {
				files[string(document)] = path
				continue
			}
			for _, pod := range pods(object, "") {
				text, _ := json.Marshal(pod)
				files[string(text)] = path
			}
		}
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d pods: %v", len(files), err)
	}
	dir, texts := t.TempDir(), slices.Sorted(maps.Keys(files))
	paths := make([]string, len(texts))
	for i, text := range texts {
		paths[i] = filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(paths[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	counts := map[string]int{}
	values := regexp.MustCompile(`"[^"]*"|\[[^ ]*|[0-9]+`)
	for i, agent := range decodeByAgent(t, paths) {
		pod, err := decode([]byte(texts[i]))
		switch {
		case err != nil && agent.Error != "":
			counts["refused by both"]++
		case err != nil:
			t.Errorf("%s: only the agent accepts it; the kubelet's error: %v; of\n%s", files[texts[i]], err, texts[i])
		case strings.Contains(agent.Error, "this agent"):
			counts["refused by the agent alone: not supported by this agent"]++
		case agent.Error != "":
			counts["refused by the agent alone: "+values.ReplaceAllString(agent.Error, "_")]++
		default:
			counts["accepted by both"]++
			for _, difference := range agent.differences(pod) {
				t.Errorf("%s: %s; of\n%s", files[texts[i]], difference, texts[i])
			}
		}
	}
	t.Logf("%d different pods", len(texts))
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%6d %.200s", counts[kind], kind)
	}
}

// pods returns the pods and pod templates in a value, as pods. A template gets the name of the object
// around it.
func pods(value any, name string) (found []map[string]any) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			found = append(found, pods(element, name)...)
		}
	case map[string]any:
		meta, _ := v["metadata"].(map[string]any)
		if own, ok := meta["name"].(string); ok {
			name = own
		}
		spec, _ := v["spec"].(map[string]any)
		if _, ok := spec["containers"].([]any); ok {
			meta = maps.Clone(meta)
			if meta == nil {
				meta = map[string]any{}
			}
			meta["name"] = name
			return append(found, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			found = append(found, pods(v[key], name)...)
		}
	}
	return found
}
