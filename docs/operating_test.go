package docs_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// operating returns docs/OPERATING.md without line breaks, because a line break could split a text
// that a test looks for.
func operating(t *testing.T) string { return joined(readFile(t, "docs/OPERATING.md")) }

// joined replaces all white space between two words of a text with one space.
func joined(text string) string { return strings.Join(strings.Fields(text), " ") }

// healthSources matches the files with the texts that Healthy, HealthReport and WaitForSync return.
var healthSources = []string{"*.go", "internal/core/calls/*.go", "cri/*.go"}

// noHealthTexts lists texts in healthSources that do not report health: parts of texts, and errors
// about wrong arguments.
var noHealthTexts = map[string]bool{
	"cri: GetPodStatus: the pod is nil": true, "no streaming lists": true, "the pod is gone": true,
	"the runtime has no event stream":                                       true,
	"only unix sockets are supported: use unix:///path or an absolute path": true,
	"the socket path is not absolute: use unix:///path or /path":            true,
	"the socket path ends in a slash":                                       true,
	"the socket path has a zero byte":                                       true,
	"the socket path has":                                                   true, "bytes; the limit is": true,
}

// docs/OPERATING.md contains every text by which the generator and package cri report a problem.
// The test splits each format string at its verbs, such as %s, and looks for the parts.
func TestOperatingHasEveryHealthText(t *testing.T) {
	document := operating(t)
	verb := regexp.MustCompile(`%[-+# 0]*(?:\[\d+\])?[\d.]*[a-zA-Z]`)
	seen, others := 0, make(map[string]bool)
	for _, pattern := range healthSources {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, format := range formats(t, file) {
				for _, part := range verb.Split(format, -1) {
					part = strings.Trim(strings.Join(strings.Fields(part), " "), " .,:;()")
					if !strings.Contains(part, " ") {
						continue
					}
					if noHealthTexts[part] {
						others[part] = true
						continue
					}
					seen++
					if !strings.Contains(document, part) {
						t.Errorf("%s: %q is not in docs/OPERATING.md", file, part)
					}
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d texts were found", seen)
	}
	if len(others) != len(noHealthTexts) {
		t.Errorf("of the %d texts that are none of health, only %d are there: %v", len(noHealthTexts), len(others), others)
	}
	for _, state := range []pleg.StreamState{
		pleg.StreamOff, pleg.StreamConnecting, pleg.StreamConnected, pleg.StreamBroken, pleg.StreamUnsupported,
	} {
		if !strings.Contains(document, "`"+string(state)+"`") {
			t.Errorf("the state %q of the stream is not in docs/OPERATING.md", state)
		}
	}
}

// formats returns the format strings of the errors and sentences in a Go file.
func formats(t *testing.T, path string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is || len(call.Args) == 0 {
			return true
		}
		name := ""
		switch f := call.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			if x, is := f.X.(*ast.Ident); is {
				name = x.Name + "." + f.Sel.Name
			}
		}
		switch name {
		case "errors.New", "fmt.Errorf", "fmt.Sprintf", "say":
			if s, is := literal(call.Args[0]); is {
				all = append(all, s)
			}
		}
		return true
	})
	return all
}

// literal returns the value of a string literal, or of several literals joined by "+".
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := literal(e.X)
		right, also := literal(e.Y)
		return left + right, ok && also
	}
	return "", false
}

// describedMetrics returns the names of all metrics of a generator that uses package cri. Metrics
// without a value are included.
func describedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	server, err := criserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	runtime, err := cri.Connect(t.Context(), server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	var collectors collectorsOf
	pleg.New(runtime,
		pleg.WithRegisterer(&collectors))
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	names := make(map[string]bool)
	for _, c := range collectors {
		descs := make(chan *prometheus.Desc)
		go func() { defer close(descs); c.Describe(descs) }()
		for d := range descs {
			names[name.FindStringSubmatch(d.String())[1]] = true
		}
	}
	return names
}

// collectorsOf is a Registerer that stores the registered collectors.
type collectorsOf []prometheus.Collector

func (c *collectorsOf) Register(collector prometheus.Collector) error {
	*c = append(*c, collector)
	return nil
}
func (c *collectorsOf) MustRegister(collectors ...prometheus.Collector) {
	*c = append(*c, collectors...)
}
func (c *collectorsOf) Unregister(prometheus.Collector) bool { return false }

// docs/OPERATING.md contains every metric of the library. The listed documents name only metrics
// that exist.
func TestOperatingHasEveryMetric(t *testing.T) {
	names := describedMetrics(t)
	if len(names) < 25 {
		t.Errorf("only %d metrics", len(names))
	}
	document := operating(t)
	for name := range names {
		if !regexp.MustCompile("`" + name + "[`{]").MatchString(document) {
			t.Errorf("%s is not in docs/OPERATING.md", name)
		}
	}
	names["kubelet_node_name"] = true // an agent exports this metric itself
	metric := regexp.MustCompile("`((?:pleg|kubelet)_[a-z_]+[a-z])[`{]")
	for _, file := range []string{
		"README.md", "docs/REFERENCE.md", "docs/ADOPTING.md", "docs/OPERATING.md", "docs/GUIDE.md", "docs/CONTRACT.md",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metric.FindAllStringSubmatch(string(text), -1) {
			name := m[1]
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if names[strings.TrimSuffix(name, suffix)] {
					name = strings.TrimSuffix(name, suffix)
				}
			}
			if !names[name] {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
}

// docs/REFERENCE.md contains every reason of bad data. docs/OPERATING.md contains every alert of
// plegwatch/mixin/.
func TestOperatingHasEveryReasonAndAlert(t *testing.T) {
	document, reference := operating(t), readFile(t, "docs/REFERENCE.md")
	for _, source := range []string{"validate.go", "cri/bad.go"} {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		reason := regexp.MustCompile(`(?m)^\s+bad\w+(?:\s+badReason =|:)\s+"([a-z]+(?:_[a-z]+)*)"`)
		found := reason.FindAllStringSubmatch(string(text), -1)
		if len(found) < 6 {
			t.Errorf("%s: only %d reasons", source, len(found))
		}
		for _, m := range found {
			if !strings.Contains(reference, "`"+m[1]+"`") {
				t.Errorf("the reason %s is not in docs/REFERENCE.md", m[1])
			}
		}
	}
	alert := regexp.MustCompile(`(?m)^\s*-?\s*alert:\s*"?(\w+)"?\s*$`)
	err := filepath.WalkDir("plegwatch/mixin", func(path string, _ fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil // without a mixin, there are no alerts
		case err != nil || !strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, "_test.yaml"):
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range alert.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(document, "`"+m[1]+"`") {
				t.Errorf("%s: the alert %s is not in docs/OPERATING.md", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// troubled is a generator that makes only periodic lists, because its fake runtime sends no events.
type troubled struct {
	*plegtest.Runtime
	cache *pleg.PodCache
	g     *pleg.GenericPLEG
}

func newTroubled() troubled {
	rt, cache := plegtest.NewRuntime(), pleg.NewCache()
	return troubled{rt, cache, pleg.New(rt.Plain(), pleg.WithCache(cache),
		pleg.WithLogger(logr.Discard()))}
}

// For each problem, docs/OPERATING.md contains the whole text that a generator reports, except for
// numbers and names.
func TestOperatingQuotesWhatIsSaid(t *testing.T) {
	varying := regexp.MustCompile(`pod \S+ \(\S+\)|pod (?:5d4f…|pod-\d+)|\b\d{4}-\S+Z\b|` +
		`\b(?:\d+m)?\d+(?:\.\d+)?m?s\b|\b\d+\b`)
	document := varying.ReplaceAllString(operating(t), "#")
	said := func(err error) {
		t.Helper()
		if err == nil {
			t.Error("nothing is wrong")
			return
		}
		for _, part := range strings.Split(err.Error(), "; ") {
			part = strings.TrimPrefix(part, "the last error: ")
			if text := varying.ReplaceAllString(part, "#"); !strings.Contains(document, text) {
				t.Errorf("docs/OPERATING.md does not have %q", text)
			}
		}
	}
	health := func(n troubled) {
		t.Helper()
		_, err := n.g.Healthy()
		reason, cause, _ := strings.Cut(err.Error(), ": ")
		if stuck := ": GetPodStatus of "; strings.Contains(err.Error(), stuck) { // the reason contains a colon
			reason, cause, _ = strings.Cut(err.Error(), stuck)
			cause = stuck[2:] + cause
		}
		said(errors.New(reason))
		said(errors.New(cause))
	}
	synctest.Test(t, func(t *testing.T) {
		n := newTroubled()
		for i := range 4 {
			n.SetPod(plegtest.NewPod(types.UID(fmt.Sprintf("pod-%05d", i)), plegtest.Running(fmt.Sprint("c", i))))
		}
		health(n) // the generator is not running
		hang := n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
		n.g.Start(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := n.g.WaitForSync(ctx)
		said(errors.New(strings.TrimSuffix(err.Error(), ": context deadline exceeded")))
		_, _, err = n.cache.LookupNewerThan(ctx, "pod-00000", time.Now())
		said(err)
		time.Sleep(4 * time.Minute)
		health(n) // no pod can be inspected
		hang()
		time.Sleep(time.Minute)
		defer n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)()
		time.Sleep(4 * time.Minute)
		said(errors.New(n.g.HealthReport().RelistError)) // the list has timed out
		n.g.Stop()
	})
	synctest.Test(t, func(t *testing.T) {
		n := newTroubled()
		n.g.Start(t.Context())
		n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("…"))
		time.Sleep(4*time.Minute + 500*time.Millisecond) // between two lists
		health(n)                                        // the last list has failed
		n.g.Stop()
	})
}
