package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func readYAML(t *testing.T, path string, into any) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), path))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(text)
}

type workflow struct {
	On          any               `json:"true"` // YAML 1.1 decodes the key "on" as true
	Permissions map[string]string `json:"permissions"`
	Jobs        map[string]struct {
		Permissions map[string]string `json:"permissions"`
		Timeout     int               `json:"timeout-minutes"`
		Steps       []struct {
			Uses string         `json:"uses"`
			Run  string         `json:"run"`
			With map[string]any `json:"with"`
		} `json:"steps"`
	} `json:"jobs"`
}

// Workflows refer to actions by commit hash, because a tag can be moved. A workflow that a branch
// or a fork can start may only read the repository. A job may have more rights only in a workflow
// that a pushed version tag starts.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(Root(), ".github", "workflows", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no workflows:", err)
	}
	gate := false
	for _, file := range files {
		var w workflow
		text := readYAML(t, filepath.Join(".github", "workflows", filepath.Base(file)), &w)
		claim(t, reflect.DeepEqual(w.Permissions, map[string]string{"contents": "read"}), file+" may only read")
		claim(t, !strings.Contains(text, "pull_request_target"), file+" gives nothing to a fork")
		if !isStartedByTags(w.On) {
			claim(t, !strings.Contains(text, "secrets."), file+" has no secrets")
		}
		for name, job := range w.Jobs {
			claim(t, job.Timeout > 0, "job "+name+" has an end")
			if !isStartedByTags(w.On) {
				claim(t, job.Permissions == nil, "job "+name+" has no more rights")
			}
			hasTags := false
			for _, s := range job.Steps {
				if s.Uses != "" && !regexp.MustCompile(`^[\w-]+/[\w./-]+@[0-9a-f]{40}$`).MatchString(s.Uses) {
					t.Errorf("%s is not pinned by its commit", s.Uses)
				}
				if strings.HasPrefix(s.Uses, "actions/checkout@") {
					claim(t, s.With["persist-credentials"] == false, "the token is not left behind in "+name)
					hasTags = s.With["fetch-depth"] == 0.0
				}
				if strings.HasSuffix(s.Run, "bash .ci/run") {
					claim(t, hasTags, "the gate has the tags")
					gate = true
				}
			}
		}
	}
	claim(t, gate, "a workflow runs .ci/run")
}

// isStartedByTags reports whether only a pushed version tag starts a workflow.
func isStartedByTags(on any) bool {
	return reflect.DeepEqual(on, map[string]any{"push": map[string]any{"tags": []any{"v[0-9]+.[0-9]+.[0-9]+"}}})
}

func TestDependabotKnowsEveryModule(t *testing.T) {
	var modules []string
	err := filepath.WalkDir(Root(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != Root():
			return fs.SkipDir
		case entry.Name() == "go.mod":
			dir, err := filepath.Rel(Root(), filepath.Dir(path))
			modules = append(modules, filepath.Join("/", dir))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Version int `json:"version"`
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directory   string   `json:"directory"`
			Directories []string `json:"directories"`
			Groups      map[string]struct {
				Patterns []string `json:"patterns"`
			} `json:"groups"`
		} `json:"updates"`
	}
	readYAML(t, ".github/dependabot.yml", &config)
	ecosystems, listed := map[string]bool{}, []string{}
	for _, u := range config.Updates {
		ecosystems[u.Ecosystem] = true
		if u.Ecosystem == "gomod" {
			listed = append(listed, u.Directories...)
			claim(t, slices.Contains(u.Groups["kubernetes"].Patterns, "k8s.io/*"), "Kubernetes' modules come together")
		}
	}
	slices.Sort(modules)
	if slices.Sort(listed); !slices.Equal(listed, modules) {
		t.Errorf("dependabot knows\n%s\nand the modules are in\n%s", strings.Join(listed, "\n"),
			strings.Join(modules, "\n"))
	}
	claim(t, config.Version == 2 && ecosystems["gomod"] && ecosystems["github-actions"] && ecosystems["docker"],
		"modules, actions and the image are updated")
}
