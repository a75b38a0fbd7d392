package cri_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/crimessage"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// GetPods returns the labels that the pod was created with. The maps are shared, not copied.
func TestLabelsOfAPod(t *testing.T) {
	s, r := serverAndRuntime(t)
	config := criserver.PodConfig{UID: "uid", Name: "web", Namespace: "shop", RuntimeHandler: "kata",
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "pod"}}
	must(t, s.StopPodSandbox(s.RunPod(config)))
	config.Labels = map[string]string{"app": "web", "version": "2"}
	sandbox := s.RunPod(config)
	c, err := s.RunContainer(sandbox, criserver.ContainerConfig{
		Labels: map[string]string{"of": "container"}, Annotations: map[string]string{"note": "container"}})
	must(t, err)
	_, err = s.RestartContainer(c)
	must(t, err)

	pod := getPods(t, r)[0]
	kubelets := func(m map[string]string) bool {
		return m["io.kubernetes.pod.uid"] == "uid" && m["io.kubernetes.pod.name"] == "web" &&
			m["io.kubernetes.pod.namespace"] == "shop"
	}
	if !kubelets(pod.Labels) || pod.Labels["app"] != "web" || pod.Labels["version"] != "2" || len(pod.Labels) != 5 ||
		pod.Annotations["note"] != "pod" || pod.RuntimeHandler != "kata" {
		t.Errorf("the pod has %v, %v, %q", pod.Labels, pod.Annotations, pod.RuntimeHandler)
	}
	newest, old := pod.Sandboxes[0], pod.Sandboxes[1]
	if !sameMap(pod.Labels, newest.Labels) || !sameMap(pod.Annotations, newest.Annotations) || newest.Attempt != 1 {
		t.Errorf("the newest sandbox is %+v", newest)
	}
	if old.Labels["app"] != "web" || old.Labels["version"] != "" || old.Attempt != 0 {
		t.Errorf("the sandbox before is %+v", old)
	}
	for i, c := range pod.Containers {
		if !kubelets(c.Labels) || c.Labels["of"] != "container" || c.Labels["app"] != "" ||
			c.Labels["io.kubernetes.container.name"] != "app" || c.Annotations["note"] != "container" ||
			c.Attempt != uint32(1-i) {
			t.Errorf("container %d is %+v", i, c)
		}
	}
}

func sameMap(a, b map[string]string) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// Every list returns the current labels. A pod that was returned before keeps its old labels.
func TestLabelsAreRefreshed(t *testing.T) {
	node := &stub{chunk: 100, sandboxes: []*runtimeapi.PodSandbox{sandbox("s1", "uid-1"), sandbox("s2", "uid-2")}}
	node.sandboxes[0].Labels["app"] = "web"
	r := newRuntime(node)
	before := getPods(t, r)
	changed := crimessage.Clone(node.sandboxes[0])
	changed.Labels["app"] = "shop"
	node.sandboxes[0] = changed

	alone, err := r.GetPod(t.Context(), "uid-1")
	must(t, err)
	after := getPods(t, r)
	for what, pod := range map[string]*pleg.Pod{"GetPod": alone, "GetPods": after[0]} {
		if pod.Labels["app"] != "shop" || pod.Sandboxes[0].Labels["app"] != "shop" {
			t.Errorf("%s returns %v, %v", what, pod.Labels, pod.Sandboxes[0].Labels)
		}
	}
	if before[0].Labels["app"] != "web" {
		t.Error("a pod that was returned was modified")
	}
	if after[1] != before[1] {
		t.Error("another pod was replaced")
	}
	if again, err := r.GetPod(t.Context(), "uid-1"); err != nil || again != after[0] {
		t.Errorf("GetPod returns another pod, %v", err)
	}
}

// Whatever the order of an item's million labels, the next list recognises the item in linear time.
// (Searching all labels for each label would take a quarter of an hour.) If one label changes, the
// next list contains the change.
func TestMillionLabels(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("makes a million labels, in one goroutine")
	}
	const million = 1_000_000
	entries := make([][]byte, million)
	for i := range entries {
		entries[i] = mapEntry(8, fmt.Sprintf("k%06d", i), "v")
	}
	huge, err := crimessage.Marshal(container("c1", "uid-1"))
	must(t, err)
	small, err := crimessage.Marshal(container("c2", "uid-2"))
	must(t, err)
	node := &stub{chunk: 16 << 10}
	encode := func() { node.raw = slices.Concat(listItem(huge, slices.Concat(entries...)), listItem(small)) }
	r := newRuntime(node)

	encode()
	first := getPods(t, r)
	if n := len(first[0].Containers[0].Labels); n != million+2 {
		t.Fatalf("%d labels", n)
	}
	slices.Reverse(entries)
	encode()
	if again := getPods(t, r); &again[0] != &first[0] {
		t.Error("the listing changed, but nothing else")
	}
	if got := metric(t, r, "pleg_cri_listed_items_total", "decoded"); got != 2 {
		t.Errorf("%v items were decoded", got)
	}
	key := fmt.Sprintf("k%06d", million-1-424242)
	entries[424242] = mapEntry(8, key, "w")
	encode()
	changed := getPods(t, r)
	if changed[0].Containers[0].Labels[key] != "w" || first[0].Containers[0].Labels[key] != "v" || changed[1] != first[1] {
		t.Error("one change in a million was missed")
	}
}

// If the labels of one pod do not fit into a message, full lists fail and change nothing. GetPod
// can still list other pods.
func TestLabelsBeyondTheMessageLimit(t *testing.T) {
	for _, opts := range [][]cri.Option{nil, {cri.WithPlainLists()}} {
		s, _ := serverAndRuntime(t)
		s.RunPod(criserver.PodConfig{UID: "small"})
		r := connect(t, s, opts...)
		before := getPods(t, r)
		large := s.RunPod(criserver.PodConfig{UID: "large", Labels: map[string]string{"x": strings.Repeat("x", 65<<20)}})
		if _, err := r.GetPods(t.Context(), true); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a list with 65 MiB of labels: %v", err)
		}
		if _, err := r.GetPod(t.Context(), "large"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a pod with 65 MiB of labels: %v", err)
		}
		if pod, err := r.GetPod(t.Context(), "small"); err != nil || pod != before[0] {
			t.Errorf("another pod beside it: %v, %v", pod, err)
		}
		must(t, s.RemovePodSandbox(large))
		if after := getPods(t, r); &after[0] != &before[0] {
			t.Error("the failed list left traces")
		}
	}
}

// Labels and annotations may contain secrets, so no log, metric, report or error contains them.
// Logs contain only the kubelet's name of the pod.
func TestLabelsAreNeverLogged(t *testing.T) {
	const secret = "hunter2"
	for _, chunk := range []int{0, 16} {
		var log strings.Builder
		logger := funcr.New(func(prefix, args string) { fmt.Fprintln(&log, prefix, args) }, funcr.Options{Verbosity: 10})
		secrets := func(m map[string]string) map[string]string {
			if m == nil {
				m = map[string]string{}
			}
			m["label-"+secret], m["of"] = "x", "value-"+secret
			return m
		}
		s, c, c2 := sandbox("s", "uid"), container("c", "uid"), container("c", "uid")
		s.State, c.State = 7, 7
		c.Metadata = nil
		s.Labels, s.Annotations = secrets(s.Labels), secrets(s.Annotations)
		c.Labels, c.Annotations = secrets(c.Labels), secrets(c.Annotations)
		c2.Labels = secrets(c2.Labels)
		c.Annotations["io.kubernetes.container.hash"] = secret
		node := &stub{
			chunk:      chunk,
			sandboxes:  []*runtimeapi.PodSandbox{s},
			containers: []*runtimeapi.Container{c, c2, {Labels: secrets(nil)}, {Id: "d", Labels: secrets(nil)}},
		}
		r := newRuntime(node, cri.WithLogger(logger))
		pod := getPods(t, r)[0]
		for _, m := range []map[string]string{pod.Labels, pod.Annotations, pod.Containers[0].Labels} {
			if m["of"] != "value-"+secret {
				t.Errorf("the pod has %v", m)
			}
		}
		if _, err := r.GetPod(t.Context(), "uid"); err != nil {
			t.Error(err)
		}
		node.raw = []byte{0x0a, 0x03, 0x42, 0x7f}
		node.chunk = 16
		_, err := r.GetPods(t.Context(), true)
		fmt.Fprintln(&log, err, r.DescribeRuntime(), inFlight(r))
		reg := prometheus.NewRegistry()
		reg.MustRegister(r)
		families, err := reg.Gather()
		must(t, err)
		fmt.Fprintln(&log, families)
		if !strings.Contains(log.String(), "without_metadata") || !strings.Contains(log.String(), "malformed") {
			t.Errorf("nothing was logged: %s", log.String())
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("a label is shown: %s", log.String())
		}
	}
}
