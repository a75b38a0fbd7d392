package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// edge creates a module with a vendored kubelet, which consists of the files that this command
// edits. As in KubeEdge, a replace line selects a fork of release 1.32, and the vendor folder links
// to a module of the repository.
func edge(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "edge")
	metrics := "package metrics\nfunc Register() {\n"
	for _, name := range ours {
		if name != sinceOnDemand {
			metrics += "legacyregistry.MustRegister(" + name + ")\n"
		}
	}
	const kubelet = "vendor/k8s.io/kubernetes/pkg/kubelet/"
	for path, content := range map[string]string{
		"go.mod": "module example.com/edge\n\ngo 1.23.0\n\n" +
			"require (\n\texample.com/api v0.0.0\n\tk8s.io/kubernetes v1.32.10\n)\n\n" +
			"replace (\n\texample.com/api => ./staging/api\n\tk8s.io/kubernetes => example.com/kubernetes v1.32.10-edge1\n)\n",
		"main.go": "package main\n\nimport (\n\t_ \"example.com/api\"\n\t_ \"github.com/kubepleg/pleg/cri\"\n)\n\n" +
			"func main() {}\n",
		"staging/api/api.go": "package api\n",
		".git/config":        "",
		"vendor/modules.txt": "# example.com/api v0.0.0 => ./staging/api\n## explicit\nexample.com/api\n" +
			"# k8s.io/kubernetes v1.32.10 => example.com/kubernetes v1.32.10-edge1\n## explicit; go 1.23.0\n" +
			"# example.com/api => ./staging/api\n# k8s.io/kubernetes => example.com/kubernetes v1.32.10-edge1\n",
		kubelet + "container/cache.go": "package container\n",
		kubelet + "pleg/generic.go":    "package pleg\n",
		kubelet + "pleg/evented.go":    "package pleg\n",
		kubelet + "metrics/metrics.go": metrics + "}\n",
		kubelet + "kubelet.go":         makesTwo,
		kubelet + "kubelet_pods.go":    publishes,
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "vendor/example.com"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../staging/api", filepath.Join(dir, "vendor/example.com/api")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestVendoredKubelet shows that the copy of a module is edited for its release and vendors the
// library. Go's own check accepts the copy. The source stays unchanged.
func TestVendoredKubelet(t *testing.T) {
	root, err := findRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	source := edge(t)
	f, err := copyFork(root, source, filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	if f.version != "v1.32.10-edge1" || f.release != 32 {
		t.Errorf("it found version %s, release %s", f.version, f.release)
	}
	if err := f.edit(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"pkg/kubelet/pleg/requests.go":   "SetPodWatchCondition",
		"pkg/kubelet/container/cache.go": "github.com/kubepleg/pleg",
		"pkg/kubelet/kubelet.go":         "pleg.NodeRuntime(",
		"pkg/kubelet/kubelet_pods.go":    "{\n\tpodStatus = kubecontainer.Published(podStatus, podIsTerminal)\n\told :=",
	} {
		if got := edited(t, &f.workspace, path); !strings.Contains(got, want) {
			t.Errorf("%s is\n%s", path, got)
		}
	}
	if _, err := os.Stat(filepath.Join(f.copy, ".git")); err == nil {
		t.Error("the history was copied")
	}
	if _, err := os.Stat(filepath.Join(f.original, "pkg/kubelet/pleg/evented.go")); err != nil {
		t.Error("the source was edited:", err)
	}
	// Now the fork vendors another version of a module that the library needs. One package of the
	// module is missing.
	const modules = "../../modules.txt"
	others := edited(t, &f.workspace, modules)
	vendor := func(version string) error {
		known := "# golang.org/x/sync " + version + "\n## explicit\ngolang.org/x/sync/singleflight\n"
		if err := f.write(modules, []byte(known+others)); err != nil {
			t.Fatal(err)
		}
		if err := command(t.Context(), f.copy, "mod", "edit", "-require=golang.org/x/sync@"+version).Run(); err != nil {
			t.Fatal(err)
		}
		return f.vendorLibrary(t.Context())
	}
	if err := vendor("v0.7.0"); err == nil || !strings.Contains(err.Error(), "x/sync is vendored in v0.7.0") {
		t.Errorf("with an older version than the library's: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(f.copy, "vendor/github.com")); err != nil {
		t.Fatal(err)
	}
	if err := vendor("v0.100.0"); err != nil {
		t.Fatal(err)
	}
	if got := edited(t, &f.workspace, modules); !strings.Contains(got, "## explicit\ngolang.org/x/sync/errgroup\n") {
		t.Errorf("modules.txt is\n%s", got)
	}
	if out, err := listVendored(t.Context(), f.copy); err != nil || !strings.Contains(out, library+"/cri") {
		t.Errorf("Go's check: %v, %s", err, out)
	}
}

// TestForkBuildsWithCgo shows that the environment decides whether a fork is built with cgo.
func TestForkBuildsWithCgo(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{
		"go.mod":             "module example.com/edge\n\ngo 1.23.0\n",
		"main.go":            "package main\n\nfunc main() { print(cgo) }\n",
		"with.go":            "//go:build cgo\n\npackage main\n\nconst cgo = \"with cgo\"\n",
		"without.go":         "//go:build !cgo\n\npackage main\n\nconst cgo = \"without\"\n",
		"vendor/modules.txt": "",
	} {
		path = filepath.Join(dir, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	f := &fork{workspace: workspace{made: dir}, copy: dir}
	for enabled, want := range map[string]string{"1": "with cgo", "0": "without"} {
		t.Setenv("CGO_ENABLED", enabled)
		if err := f.build(t.Context(), []string{"."}); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command(filepath.Join(dir, "bin", "edge")).CombinedOutput(); err != nil || string(said) != want {
			t.Errorf("with CGO_ENABLED=%s, the build printed %s, %v", enabled, said, err)
		}
	}
}

func listVendored(ctx context.Context, dir string) (string, error) {
	out, err := command(ctx, dir, "list", "-e", "-mod=vendor", "-f", `{{join .Imports " "}} {{.Error}}`, "all").Output()
	return string(out), err
}

func TestVendoredVersion(t *testing.T) {
	for modules, want := range map[string]string{
		"# k8s.io/kubernetes v1.33.13\n":                                         "v1.33.13",
		"# k8s.io/kubernetes v1.32.10 => example.com/k v1.32.10-edge1\n":         "v1.32.10-edge1",
		"# k8s.io/kubernetes v1.34.4 => ../kubernetes\n## explicit; go 1.24.0\n": "v1.34.4",
		"# k8s.io/kubernetes => ../kubernetes\n# k8s.io/api v0.32.10\n":          "",
	} {
		if got, err := vendoredVersion(modules); got != want || (err == nil) == (want == "") {
			t.Errorf("of %q it is %q, %v", modules, got, err)
		}
	}
}
