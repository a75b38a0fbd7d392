// Package page shows the pods of the agent: as a page, as JSON, as a metric and as lines.
package page

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
)

// Pods are the running and the refused pods of the agent.
type Pods struct {
	Running func() *v1.PodList
	Refused func() []v1.Pod
}

// Handler serves /pods, and a page of the pods at /. It passes all other requests to rest. The main
// page of rest is at /events/.
func (p Pods) Handler(rest http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", rest)
	mux.Handle("/events/", http.StripPrefix("/events", rest))
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fields, _ := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(p.list()) // cannot fail for pods
		_ = json.NewEncoder(w).Encode(withoutSecrets(fields))                         // the client may be gone
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _ = page.Execute(w, p.list()) })
	return mux
}

// list returns all pods. If the agent refused manifests for a running pod, the pod's status contains
// the reasons.
func (p Pods) list() *v1.PodList {
	list := p.Running()
	for _, pod := range p.Refused() {
		same := func(o v1.Pod) bool { return o.Namespace == pod.Namespace && o.Name == pod.Name }
		i := slices.IndexFunc(list.Items, same)
		if i < 0 {
			list.Items = append(list.Items, pod)
			continue
		}
		s := &list.Items[i].Status
		if s.Reason == pod.Status.Reason { // another file for the pod was refused too
			pod.Status.Message = s.Message + "; " + pod.Status.Message
		}
		s.Reason, s.Message = pod.Status.Reason, pod.Status.Message
	}
	return list
}

// withoutSecrets removes the fields that not every user may see: the values of environment
// variables and headers, and annotations, where kubectl stores the whole manifest. Command lines
// stay, because every user of the host can see them anyway.
func withoutSecrets(fields any) any {
	switch v := fields.(type) {
	case []any:
		for _, element := range v {
			withoutSecrets(element)
		}
	case map[string]any:
		delete(v, "value")
		delete(v, "annotations")
		for _, field := range v {
			withoutSecrets(field)
		}
	}
	return fields
}

//go:embed page.html
var files embed.FS

var page = template.Must(template.New("page.html").Funcs(template.FuncMap{"describe": describe}).
	ParseFS(files, "page.html"))

// Restarts collects the restart counts of containers. The metric is named as in kube-state-metrics.
func (p Pods) Restarts(metrics chan<- prometheus.Metric) {
	for _, pod := range p.Running().Items {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			metrics <- prometheus.MustNewConstMetric(restartsTotal, prometheus.CounterValue, float64(c.RestartCount),
				pod.Namespace, pod.Name, string(pod.UID), c.Name)
		}
	}
}

var restartsTotal = prometheus.NewDesc("kube_pod_container_status_restarts_total",
	"How often a container was restarted.", []string{"namespace", "pod", "uid", "container"}, nil)

// TimeLayout is the layout of a time in lines of the agent.
const TimeLayout = "15:04:05.000"

// Printer returns a function that prints a line for each change of a pod's status. The function is
// not safe for concurrent use.
func Printer(w io.Writer) func(*v1.Pod) {
	last := map[string]string{} // the last printed line, by pod name
	return func(pod *v1.Pod) {
		line := describe(*pod)
		if name := pod.Namespace + "/" + pod.Name; last[name] != line {
			last[name] = line
			fmt.Fprintf(w, "%s  %-24s %s\n", time.Now().Format(TimeLayout), name, line)
		}
	}
}

// describe returns a pod's status as one line, such as "Running  ready 1/1  web: running, restarts
// 2".
func describe(pod v1.Pod) string {
	ready, containers := 0, []string{}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Ready {
			ready++
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		text := s.Name + ": " + state(s.State)
		if s.RestartCount > 0 {
			text += fmt.Sprintf(", restarts %d", s.RestartCount)
		}
		containers = append(containers, text)
	}
	return fmt.Sprintf("%-9s ready %d/%d  %s", pod.Status.Phase, ready, len(pod.Status.ContainerStatuses),
		strings.Join(containers, "; "))
}

func state(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("exited %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	case s.Waiting != nil && s.Waiting.Reason != "":
		return s.Waiting.Reason
	default:
		return "waiting"
	}
}
