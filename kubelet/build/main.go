// Command build builds a kubelet with this library in place of the kubelet's own generator and
// cache. It copies the sources of k8s.io/kubernetes from the module cache to .cache/kubelet at the
// root of the repository. In the copy, it replaces files of the kubelet by files of
// kubelet/adapter, and makes the remaining edits. It prints all edits, and builds the kubelet.
//
//	go run ./kubelet/build                # .cache/kubelet/kubelet, of the newest release
//	go run ./kubelet/build -stock         # .cache/kubelet/stock, the unchanged kubelet
//	go run ./kubelet/build -test          # the kubelet's own tests on the edited copy
//	go run ./kubelet/build -release 1.33  # .cache/kubelet/1.33/kubelet; also with -stock, -test
//
// With -source, it copies another module, such as KubeEdge's, and edits the sources in its vendor
// folder. The arguments after the flags are the packages to build.
//
//	go run ./kubelet/build -source ../kubeedge ./edge/cmd/edgecore
//
// It runs from any folder of this module. The first build takes minutes, because it compiles a
// kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	of     = flag.String("release", newest(), "the kubelet's release, such as 1.33, or its version")
	stock  = flag.Bool("stock", false, "build the kubelet as it was released")
	tests  = flag.Bool("test", false, "run the kubelet's tests on the edited tree instead of building")
	source = flag.String("source", "", "a module that vendors the kubelet's sources")
	output = flag.String("o", "", "the program to write; by default it goes below .cache/kubelet")
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
	root, err := findRoot(ctx)
	if err != nil {
		return err
	}
	if *source != "" {
		return buildFork(ctx, root, *source, flag.Args())
	}
	version, err := versionOf(*of)
	if err != nil {
		return err
	}
	w, err := findWorkspace(ctx, root, version)
	if err != nil {
		return err
	}
	if *stock {
		modfile, err := w.stockModfile(ctx)
		if err != nil {
			return err
		}
		return w.goBuild(ctx, w.original, []string{"-modfile=" + modfile}, w.version, "stock")
	}
	if err := w.copySources(ctx); err != nil {
		return err
	}
	if err := errors.Join(w.requireLibrary(ctx), w.edit()); err != nil {
		return err
	}
	if *tests {
		return w.goTest(ctx)
	}
	return w.goBuild(ctx, w.tree, nil, w.version+"+pleg", "kubelet")
}

// buildFork builds packages of a module that vendors the kubelet.
func buildFork(ctx context.Context, root, source string, packages []string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	f, err := copyFork(root, source, filepath.Join(root, ".cache", "kubelet", "source", filepath.Base(source)))
	if err != nil {
		return err
	}
	if err := errors.Join(f.edit(), f.vendorLibrary(ctx)); err != nil {
		return err
	}
	return f.build(ctx, packages)
}

// edit makes all changes and prints their descriptions.
func (w *workspace) edit() error {
	changes, err := changes(w)
	if err != nil {
		return err
	}
	for _, c := range changes {
		said, err := c(w)
		if err != nil {
			return err
		}
		fmt.Print(said)
	}
	return nil
}

// target returns the path of a program. Programs of older releases are in a folder for each
// release.
func (w *workspace) target(name string) (string, error) {
	if *output != "" {
		return filepath.Abs(*output)
	}
	if w.version == newest() {
		return filepath.Join(filepath.Dir(w.made), name), nil
	}
	return filepath.Join(w.made, name), nil
}

// goBuild builds the kubelet in dir under a temporary name, and then moves it to its final path.
func (w *workspace) goBuild(ctx context.Context, dir string, flags []string, version, name string) error {
	began := time.Now()
	path, err := w.target(name)
	if err != nil {
		return err
	}
	const variable = "k8s.io/component-base/version.gitVersion"
	args := append([]string{"build", "-mod=mod", "-trimpath", "-ldflags=-s -w -X " + variable + "=" + version}, flags...)
	if err := command(ctx, dir, append(args, "-o", path+".part", "./cmd/kubelet")...).Run(); err != nil {
		return fmt.Errorf("building the kubelet: %w", err)
	}
	fmt.Printf("built %s, a kubelet %s, in %.0f s\n", path, version, time.Since(began).Seconds())
	return os.Rename(path+".part", path)
}

// deviating are tests of the kubelet that compile but fail, because the library differs on purpose.
var deviating = map[string]string{
	"TestRunningPodAndContainerCount": "a generator without a node, such as a test's, registers no metrics",
}

// failed matches the name of a test that failed.
var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// failedTests returns the tests that failed, if all other tests passed. A package whose tests have all run
// ends with the line FAIL. After a panic, for example, this line is missing.
func failedTests(output string) (names []string) {
	before := ""
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "FAIL\t") && before != "FAIL\n" {
			return nil
		}
		before = line
	}
	for _, m := range failed.FindAllStringSubmatch(output, -1) {
		names = append(names, m[1])
	}
	return names
}

// goTest runs the kubelet's tests of the edited packages and of packages that use them, and tests
// that fail once more. On a busy machine, some fail in an unchanged kubelet, too.
func (w *workspace) goTest(ctx context.Context) error {
	flags := []string{"-mod=mod", "-trimpath", "-vet=off"}
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
		args = append(args, "./pkg/kubelet"+name)
	}
	said, err := w.shown(ctx, args)
	if again := failedTests(said); len(again) > 0 {
		fmt.Printf("failed, and run once more: %s\n", strings.Join(again, ", "))
		_, err = w.shown(ctx, append(args, "-run=^("+strings.Join(again, "|")+")$"))
	}
	if err != nil {
		return fmt.Errorf("the kubelet's tests: %w", err)
	}
	return nil
}

// shown runs a go command in the edited tree. It shows the output, and returns it.
func (w *workspace) shown(ctx context.Context, args []string) (string, error) {
	cmd := command(ctx, w.tree, args...)
	var said strings.Builder
	cmd.Stdout = io.MultiWriter(os.Stdout, &said)
	fmt.Println(strings.Join(cmd.Args, " "))
	err := cmd.Run()
	return said.String(), err
}
