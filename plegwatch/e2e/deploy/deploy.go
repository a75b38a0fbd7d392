// Package deploy reads the files in plegwatch/deploy/. The tests of packages deploy and live use
// it.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// Root returns the root directory of the repository. It panics if the working directory is outside
// the repository.
var Root = sync.OnceValue(func() string {
	root, err := testnode.Root(context.Background())
	if err != nil {
		panic(err)
	}
	return root
})

// Manifest contains the objects that a kustomization produces.
type Manifest struct {
	Namespace corev1.Namespace
	DaemonSet appsv1.DaemonSet
	// These objects are nil if the kustomization does not produce them.

	NetworkPolicy  *networkingv1.NetworkPolicy
	PodMonitor     *PodMonitor
	PrometheusRule *PrometheusRule
}

// PodMonitor is the Prometheus operator's object, with the fields that plegwatch/deploy/ uses.
type PodMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel            string               `json:"jobLabel"`
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port string `json:"port"`
			Path string `json:"path"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// PrometheusRule is the Prometheus operator's object. TestPrometheusRuleIsTheMixin checks its
// groups.
type PrometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []any `json:"groups"`
	} `json:"spec"`
}

// Kustomize builds the base with the given components and decodes the objects. It fails on unknown
// fields, duplicate fields and other kinds of objects.
func Kustomize(components ...string) (*Manifest, error) {
	files := filesys.MakeFsInMemory()
	deploy := filepath.Join(Root(), "plegwatch", "deploy")
	if err := copyTo(files, os.DirFS(deploy), "kustomize"); err != nil {
		return nil, err
	}
	return kustomize(files, components)
}

// copyTo copies the files of a folder.
func copyTo(to filesys.FileSystem, from fs.FS, folder string) error {
	return fs.WalkDir(from, folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		return to.WriteFile(path, content)
	})
}

// kustomize does the work of Kustomize. It reads the manifests from files, so that a test can
// change the manifests.
func kustomize(files filesys.FileSystem, components []string) (*Manifest, error) {
	top := types.Kustomization{Resources: []string{"../kustomize/base"}}
	for _, c := range components {
		top.Components = append(top.Components, "../kustomize/components/"+c)
	}
	content, err := yaml.Marshal(top)
	if err != nil {
		return nil, err
	}
	if err := files.WriteFile("top/kustomization.yaml", content); err != nil {
		return nil, err
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "top")
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	seen := map[string]bool{}
	for _, r := range resources.Resources() {
		is := r.GetApiVersion() + " " + r.GetKind()
		var into any
		switch is {
		case "v1 Namespace":
			into = &m.Namespace
		case "apps/v1 DaemonSet":
			into = &m.DaemonSet
		case "networking.k8s.io/v1 NetworkPolicy":
			m.NetworkPolicy = &networkingv1.NetworkPolicy{}
			into = m.NetworkPolicy
		case "monitoring.coreos.com/v1 PodMonitor":
			m.PodMonitor = &PodMonitor{}
			into = m.PodMonitor
		case "monitoring.coreos.com/v1 PrometheusRule":
			m.PrometheusRule = &PrometheusRule{}
			into = m.PrometheusRule
		}
		if into == nil || seen[is] {
			return nil, fmt.Errorf("%s is not expected", is)
		}
		seen[is] = true
		text, err := r.AsYAML()
		if err == nil {
			err = decodeStrictly(text, into)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", is, err)
		}
	}
	if !seen["v1 Namespace"] || !seen["apps/v1 DaemonSet"] {
		return nil, fmt.Errorf("there are %v, want a Namespace and a DaemonSet at least", seen)
	}
	return m, nil
}

// decodeStrictly decodes as an API server does with strict field validation. It rejects unknown and
// duplicate fields, and fields in the wrong case.
func decodeStrictly(document []byte, into any) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(unknown, err)...)
}

// buildLine matches the command in the Dockerfile that builds the program, and the folder in which
// the command runs.
var buildLine = regexp.MustCompile(`(?m)^WORKDIR /src/(\S+)$(?s:.*)^RUN (GOOS=.* -o )/out/plegwatch \.$`)

// Build builds the program with the Dockerfile's command, from the working copy and for this
// machine. It returns the program's path in dir.
func Build(ctx context.Context, dir string) (string, error) {
	content, err := os.ReadFile(filepath.Join(Root(), "plegwatch", "deploy", "Dockerfile"))
	if err != nil {
		return "", err
	}
	found := buildLine.FindSubmatch(content)
	if found == nil {
		return "", fmt.Errorf("the Dockerfile has no lines like %v", buildLine)
	}
	path := filepath.Join(dir, "plegwatch")
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("%s'%s' .", found[2], path))
	cmd.Dir = filepath.Join(Root(), string(found[1]))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-buildvcs=false", "TARGETOS="+runtime.GOOS,
		"TARGETARCH="+runtime.GOARCH, "VERSION="+Version, "REVISION=unknown")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", found[2], err, out)
	}
	return path, nil
}

// Version is the version of the program that Build makes.
const Version = "v0.0.0-test"
