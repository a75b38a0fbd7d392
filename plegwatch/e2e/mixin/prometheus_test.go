package mixin_test

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/kubepleg/pleg/internal/test/proctest"
)

// promServer is a running Prometheus server.
type promServer struct {
	t       *testing.T
	api     v1.API
	address string
	config  string // path of the configuration file
}

// target is an address that Prometheus scrapes, with its instance label.
type target struct{ instance, address string }

// startPrometheus starts a Prometheus on loopback. Each second it evaluates the rules and scrapes
// the targets. Their labels are job="kubelet" and metrics_path, as in kube-prometheus.
func startPrometheus(t *testing.T, targets []target, rules map[string]string) *promServer {
	t.Helper()
	binary, dir := program(t, "prometheus"), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range rules {
		write(name+".rules.yaml", text)
	}
	p := &promServer{t: t, address: proctest.FreeAddress(t), config: filepath.Join(dir, "prometheus.yaml")}
	p.write(targets)
	promtool(t, "check", "config", p.config)
	run(t, nil, binary, "--config.file="+p.config, "--web.enable-lifecycle",
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	answers(t, "http://"+p.address+"/-/ready")
	client, err := api.NewClient(api.Config{Address: "http://" + p.address})
	if err != nil {
		t.Fatal(err)
	}
	p.api = v1.NewAPI(client)
	return p
}

// write writes the configuration file.
func (p *promServer) write(targets []target) {
	p.t.Helper()
	var static strings.Builder
	for _, target := range targets {
		fmt.Fprintf(&static, "  - targets: [%q]\n    labels: {instance: %q}\n", target.address, target.instance)
	}
	text := `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: ["*.rules.yaml"]
scrape_configs:
- job_name: kubelet
  relabel_configs:
  - {source_labels: [__metrics_path__], target_label: metrics_path}
  static_configs:
` + static.String()
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// reload makes Prometheus scrape other targets.
func (p *promServer) reload(targets []target) {
	p.t.Helper()
	p.write(targets)
	resp, err := http.Post("http://"+p.address+"/-/reload", "", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Fatal("reload: ", resp.Status)
	}
}

// values returns a query's results without NaN values. It fails the test if the query fails.
func (p *promServer) values(q query) (values []*model.Sample) {
	p.t.Helper()
	result, _, _, err := p.api.Query(p.t.Context(), q.expr, time.Now())
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", q.where, err, q.expr)
	}
	vector, is := result.(model.Vector)
	if !is {
		p.t.Fatalf("%s is a %v", q.where, result.Type())
	}
	for _, s := range vector {
		if !math.IsNaN(float64(s.Value)) {
			values = append(values, s)
		}
	}
	return values
}

// firing returns the firing alerts, each as "name instance".
func (p *promServer) firing() map[string]bool {
	p.t.Helper()
	result, err := p.api.Alerts(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	all := make(map[string]bool)
	for _, a := range result.Alerts {
		if a.State == v1.AlertStateFiring {
			all[string(a.Labels["alertname"]+" "+a.Labels["instance"])] = true
		}
	}
	return all
}
