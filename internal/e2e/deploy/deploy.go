// Package deploy reads what is below deploy/ at the root of the repository, for the tests
// beside it and in live.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// Root returns the root of the repository. The working folder is inside it, as it is in tests.
var Root = sync.OnceValue(func() string {
	root, err := testnode.Root(context.Background())
	if err != nil {
		panic(err)
	}
	return root
})

// Manifest is the content of a file in deploy/kubernetes.
type Manifest struct {
	Namespace corev1.Namespace
	DaemonSet appsv1.DaemonSet
}

// ReadManifest decodes a file in deploy/kubernetes. It fails on a field that Kubernetes
// does not know, on one that is there twice, and on an object of another kind.
func ReadManifest(name string) (*Manifest, error) {
	content, err := os.ReadFile(filepath.Join(Root(), "deploy", "kubernetes", name))
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func decodeManifest(content []byte) (*Manifest, error) {
	m := &Manifest{}
	reader := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	defer reader.Close()
	buffer := make([]byte, len(content)+1)
	seen := map[string]int{}
	for {
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var kind struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(buffer[:n], &kind); err != nil {
			return nil, err
		}
		is := kind.APIVersion + " " + kind.Kind
		seen[is]++
		switch is {
		case "v1 Namespace":
			err = decodeStrictly(buffer[:n], &m.Namespace)
		case "apps/v1 DaemonSet":
			err = decodeStrictly(buffer[:n], &m.DaemonSet)
		default:
			err = errors.New("is not expected")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", is, err)
		}
	}
	if len(seen) != 2 || seen["v1 Namespace"] != 1 || seen["apps/v1 DaemonSet"] != 1 {
		return nil, fmt.Errorf("there are %v, want a Namespace and a DaemonSet", seen)
	}
	return m, nil
}

// decodeStrictly decodes as an API server does with strict field validation: the case of a
// field's name matters.
func decodeStrictly(document []byte, into any) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(unknown, err)...)
}

// buildLine is the line of the Dockerfile that builds the program.
var buildLine = regexp.MustCompile(`(?m)^RUN (.* -o )/out/plegwatch (\./\S+)$`)

// Build builds the program by the Dockerfile's own command, in the working copy, and
// returns its path in dir.
func Build(ctx context.Context, dir string) (string, error) {
	content, err := os.ReadFile(filepath.Join(Root(), "deploy", "Dockerfile"))
	if err != nil {
		return "", err
	}
	found := buildLine.FindSubmatch(content)
	if found == nil {
		return "", fmt.Errorf("the Dockerfile has no line like %v", buildLine)
	}
	path := filepath.Join(dir, "plegwatch")
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("%s'%s' %s", found[1], path, found[2]))
	cmd.Dir = Root()
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", found[0], err, out)
	}
	return path, nil
}
