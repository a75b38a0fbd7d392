package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// released returns a workspace with a release. The release consists of one file.
func released(t *testing.T, path, content string) *workspace {
	t.Helper()
	w := &workspace{release: 36, original: t.TempDir(), tree: t.TempDir()}
	for _, dir := range []string{w.original, w.tree} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.original, path), []byte(content), 0o444); err != nil {
		t.Fatal(err)
	}
	return w
}

func edited(t *testing.T, w *workspace, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(w.tree, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

const makesTwo = `package kubelet

func NewMainKubelet() {
	k.runtime = runtime
	if evented {
		k.pleg = pleg.NewGenericPLEG(logger, k.runtime, ch, long, cache, clock)
	} else {
		k.pleg = pleg.NewGenericPLEG(logger, k.runtime, ch, short, cache, clock)
	}
}

func other() { pleg.NewGenericPLEG(logger, k.runtime, ch, short, cache, clock) }
`

const publishes = `package kubelet

func (kl *Kubelet) generateAPIPodStatus(pod *v1.Pod, podStatus *kubecontainer.PodStatus, podIsTerminal bool) {
	old := 0
}
`

// TestRuntimeIsHandedOver shows that handRuntimeOver wraps only the runtime that the generators
// get, and only where the kubelet sets that runtime. A second edit of the same tree has the same
// result.
func TestRuntimeIsHandedOver(t *testing.T) {
	const path = "kubelet.go"
	w := released(t, path, makesTwo)
	for range 2 {
		said, err := editFile(path, "NewMainKubelet", handRuntimeOver)(w)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(said, "edited kubelet.go:"); n != 1 {
			t.Errorf("the description is %q", said)
		}
		got := edited(t, w, path)
		if strings.Count(got, "pleg.NodeRuntime(") != 1 ||
			!strings.Contains(got, "k.runtime = pleg.NodeRuntime(runtime, kubeDeps.") {
			t.Errorf("it wrote\n%s", got)
		}
	}
}

// TestPublishesConfirmed shows that the edit knows how each release marks a terminal pod.
func TestPublishesConfirmed(t *testing.T) {
	const path = "kubelet_pods.go"
	for r, want := range map[release]string{37: "podIsTerminal)", 38: "podState == TerminatedPod)"} {
		w := released(t, path, publishes)
		w.release = r
		if _, err := editFile(path, "generateAPIPodStatus", publishConfirmed)(w); err != nil {
			t.Fatal(err)
		}
		if got := edited(t, w, path); !strings.Contains(got, "Published(podStatus, "+want) {
			t.Errorf("for %s it wrote\n%s", r, got)
		}
	}
}

// TestEditThatFindsNothingFails shows that an edit returns an error if it does not find the code to
// replace.
func TestEditThatFindsNothingFails(t *testing.T) {
	const path = "kubelet.go"
	for content, want := range map[string]string{
		"package kubelet\n": "no function NewMainKubelet",
		"package kubelet\nfunc NewMainKubelet() { f() }\n":                                  "no call of pleg.NewGenericPLEG",
		"package kubelet\nfunc NewMainKubelet() { pleg.NewGenericPLEG(k.r, 1, 2, 3, 4) }\n": "is set in 0 places",
	} {
		_, err := editFile(path, "NewMainKubelet", handRuntimeOver)(released(t, path, content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("for %q the error is %v", content, err)
		}
	}
	_, err := editFile(path, "Register", leaveMetricsOut)(released(t, path,
		"package metrics\nfunc Register() { legacyregistry.MustRegister(PLEGLastSeen) }\n"))
	if err == nil || !strings.Contains(err.Error(), "only [PLEGLastSeen]") {
		t.Errorf("for one metric of ten the error is %v", err)
	}
}

// TestMetricsAreLeftOut shows that only the registrations of the generator's metrics are removed.
func TestMetricsAreLeftOut(t *testing.T) {
	const path = "metrics.go"
	source := "package metrics\nfunc Register() {\nonce.Do(func() {\nlegacyregistry.MustRegister(Evictions)\n"
	for _, name := range ours {
		source += "legacyregistry.MustRegister(" + name + ")\n"
	}
	w := released(t, path, source+"})\n}\n")
	if _, err := editFile(path, "Register", leaveMetricsOut)(w); err != nil {
		t.Fatal(err)
	}
	if got := edited(t, w, path); strings.Count(got, "MustRegister") != 1 || !strings.Contains(got, "(Evictions)") {
		t.Errorf("it wrote\n%s", got)
	}
}

// TestTrimRemovesWhatDoesNotCompile shows that trimTests removes whole declarations that do not
// compile, and imports that are unused after that.
func TestTrimRemovesWhatDoesNotCompile(t *testing.T) {
	const path = "x_test.go"
	w := released(t, path, `package x

import (
	"a"
	"b"
)

func TestKept() { a.F() }

func TestGone() {
	b.F(g.field)
}
`)
	if _, err := w.restore(path); err != nil {
		t.Fatal(err)
	}
	lines := complaints("x\n./x_test.go:11:8: g.field undefined\nx_test.go:5:2: \"b\" imported and not used\n")
	tests, err := w.removeDeclarations(path, lines[path])
	if err != nil || len(tests) != 1 || tests[0] != "TestGone: g.field undefined" {
		t.Errorf("it removed %v, %v", tests, err)
	}
	if got := edited(t, w, path); strings.Contains(got, "\"b\"") || strings.Contains(got, "TestGone") ||
		!strings.Contains(got, "TestKept") || !strings.Contains(got, "\"a\"") {
		t.Errorf("it wrote\n%s", got)
	}
}
