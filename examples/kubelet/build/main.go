// Command build makes a kubelet that runs on this library in place of its own generator
// and cache. It copies the sources of k8s.io/kubernetes from the module cache to
// .cache/kubelet at the root of the repository, puts the files of examples/kubelet/adapter
// in the place of the kubelet's, makes the edits that remain, says each, and builds.
//
//	go run ./examples/kubelet/build          # .cache/kubelet/kubelet
//	go run ./examples/kubelet/build -stock   # .cache/kubelet/stock, without any of that
//	go run ./examples/kubelet/build -test    # the kubelet's own tests on it
//
// It works anywhere in this module. The first build takes minutes: it compiles a kubelet.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const kubernetes = "k8s.io/kubernetes"

var (
	stock  = flag.Bool("stock", false, "build the kubelet as it was released")
	tests  = flag.Bool("test", false, "run the kubelet's tests on the edited tree instead of building")
	output = flag.String("o", "", "the program to write; by default it goes to .cache/kubelet")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	began := time.Now()
	w, err := findWorkspace(ctx)
	if err != nil {
		return err
	}
	if *stock {
		path := target(w, "stock")
		if err := w.goBuild(ctx, nil, w.version, path); err != nil {
			return err
		}
		fmt.Printf("built %s, the kubelet %s as released, in %.0f s\n", path, w.version, time.Since(began).Seconds())
		return nil
	}
	if err := w.copySources(ctx); err != nil {
		return err
	}
	for _, c := range changes {
		said, err := c(w)
		if err != nil {
			return err
		}
		fmt.Print(said)
	}
	modfile, err := w.writeModfile(ctx)
	if err != nil {
		return err
	}
	if *tests {
		return w.goTest(ctx, modfile)
	}
	path := target(w, "kubelet")
	if err := w.goBuild(ctx, []string{"-modfile=" + modfile}, w.version+"+pleg", path); err != nil {
		return err
	}
	fmt.Printf("built %s in %.0f s\n", path, time.Since(began).Seconds())
	return nil
}

func target(w *workspace, name string) string {
	if *output != "" {
		if path, err := filepath.Abs(*output); err == nil {
			return path
		}
	}
	return filepath.Join(w.cache, name)
}

// command returns a command that runs in the adapter's module, which pins the kubelet.
func (w *workspace) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = w.adapter
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return cmd
}

// goBuild builds the kubelet beside its place and moves it there.
func (w *workspace) goBuild(ctx context.Context, flags []string, version, path string) error {
	const variable = "k8s.io/component-base/version.gitVersion"
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w -X " + variable + "=" + version}, flags...)
	if err := w.command(ctx, append(args, "-o", path+".part", kubernetes+"/cmd/kubelet")...).Run(); err != nil {
		return fmt.Errorf("building the kubelet: %w", err)
	}
	return os.Rename(path+".part", path)
}

// deviating are the kubelet's tests that compile, and ask for what the library means to do
// differently.
var deviating = map[string]string{
	"TestRelistingWithSandboxes":      "a sandbox that was never ready and has no containers is being made",
	"TestRunningPodAndContainerCount": "a generator without a node, such as a test's, registers no metrics",
}

// goTest runs the kubelet's tests of what is edited and of what uses it.
func (w *workspace) goTest(ctx context.Context, modfile string) error {
	// The tests need modules that the kubelet itself does not: their sums are added to
	// those beside the modfile.
	flags := []string{"-modfile=" + modfile, "-mod=mod", "-trimpath"}
	for _, name := range []string{"container", "pleg"} {
		if err := w.trimTests(ctx, flags, name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(deviating)) {
		fmt.Printf("left out, as it deviates: %s: %s\n", name, deviating[name])
	}
	skip := "^(" + strings.Join(slices.Sorted(maps.Keys(deviating)), "|") + ")$"
	args := append([]string{"test", "-count=1", "-timeout=20m", "-skip=" + skip}, flags...)
	for _, name := range []string{"", "/container", "/pleg"} {
		args = append(args, kubernetes+"/pkg/kubelet"+name)
	}
	cmd := w.command(ctx, args...)
	cmd.Stdout = os.Stdout
	fmt.Println(strings.Join(cmd.Args, " "))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the kubelet's tests: %w", err)
	}
	return nil
}
