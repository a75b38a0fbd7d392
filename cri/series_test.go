package cri_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// seriesOf returns the metric series in a scrape of a generator. The node has the given number of
// pods. Each bucket of a histogram is a series. Nodes of different sizes share no names and labels.
// Every container dies for its own reason. About every third container is restarted. Of ten pods,
// one cannot be inspected the first time, and another one is removed.
func seriesOf(t *testing.T, pods int) (series []string) {
	t.Helper()
	s, err := criserver.Start()
	must(t, err)
	t.Cleanup(s.Stop)
	registry := prometheus.NewRegistry()
	generator := pleg.NewGenericPLEG(connect(t, s), 10*pods, time.Second, pleg.NewCache(),
		clocktesting.NewFakeClock(time.Now()), pleg.WithLogger(logr.Discard()),
		pleg.WithRegisterer(registry))
	t.Cleanup(generator.Stop)
	generator.Subscribe(t.Context(), pleg.WithCapacity(1))
	var heal []func()
	sandboxes, containers := make([]string, pods), make([]string, pods)
	for i := range pods {
		name := fmt.Sprintf("%d-of-%d", i, pods)
		sandboxes[i] = s.RunPod(criserver.PodConfig{
			UID: types.UID("uid-" + name), Name: "pod-" + name, Namespace: "namespace-" + name,
			Labels: map[string]string{"label-" + name: name},
		})
		containers[i] = runContainer(t, s, sandboxes[i], "app-"+name)
		if i%10 == 0 {
			heal = append(heal, s.Inject(criserver.Fault{Method: "ContainerStatus", Object: containers[i],
				Err: status.Error(codes.Internal, "no such task "+name)}))
		}
	}
	_ = generator.Relist(t.Context())
	if failing := len(generator.HealthReport().FailingPods); failing != len(heal) {
		t.Errorf("%d pods fail, not %d", failing, len(heal))
	}
	for _, h := range heal {
		h()
	}
	for i, id := range containers {
		must(t, s.ExitContainer(id, i, fmt.Sprintf("reason %d of %d", i, pods)))
		switch {
		case i%10 == 1:
			must(t, s.StopPodSandbox(sandboxes[i]))
			must(t, s.RemovePodSandbox(sandboxes[i]))
		case i%3 == 0:
			_, err := s.RestartContainer(id)
			must(t, err)
		}
	}
	_ = generator.Relist(t.Context())

	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(scrape.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			series = append(series, line[:strings.LastIndexByte(line, ' ')])
		}
	}
	slices.Sort(series)
	return series
}

// An agent exports the same metric series on a node of any size, whatever the names of its pods and
// the reasons of their exits. docs/BENCHMARKS.md contains the number of series.
func TestSeriesDoNotGrow(t *testing.T) {
	few, many := seriesOf(t, 20), seriesOf(t, 120)
	if diff := cmp.Diff(few, many); diff != "" {
		t.Errorf("(-20 +120 pods):\n%s", diff)
	}
	allowed := []string{"cause", "container_state", "decoding", "le", "operation_type", "reason", "witness",
		"name", "version"} // name and version of the one runtime
	if !slices.Contains(many, `pleg_cri_runtime_info{name="containerd",version="v2.4.2"}`) {
		t.Error("the runtime has no metric")
	}
	label := regexp.MustCompile(`[{,](\w+)="`)
	for _, s := range many {
		for _, m := range label.FindAllStringSubmatch(s, -1) {
			if !slices.Contains(allowed, m[1]) {
				t.Errorf("%s has a label that may grow", s)
			}
		}
	}
	text, err := os.ReadFile("../docs/BENCHMARKS.md")
	must(t, err)
	said := regexp.MustCompile(`\*\*(\d+) series\*\*`).FindStringSubmatch(string(text))
	if said == nil {
		t.Fatal("docs/BENCHMARKS.md does not say how many series an agent has")
	}
	if n, err := strconv.Atoi(said[1]); n != len(many) || err != nil {
		t.Errorf("%d series; docs/BENCHMARKS.md says %s", len(many), said[1])
	}
}

// With WithoutKubeletMetrics, no metric uses a name of the kubelet's metrics.
func TestWithoutKubeletMetrics(t *testing.T) {
	s, err := criserver.Start()
	must(t, err)
	defer s.Stop()
	registry := prometheus.NewRegistry()
	must(t, registry.Register(connect(t, s, cri.WithoutKubeletMetrics())))
	families, err := registry.Gather()
	must(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	if len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "kubelet_") }) {
		t.Errorf("got %v", names)
	}
}
