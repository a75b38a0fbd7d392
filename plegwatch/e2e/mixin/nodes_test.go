package mixin_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// programs contains the paths of the built plegwatch and nodeagent.
type programs struct{ watch, nodeagent string }

func build(t *testing.T) programs {
	t.Helper()
	dir := t.TempDir()
	p := programs{filepath.Join(dir, "plegwatch"), filepath.Join(dir, "nodeagent")}
	for module, binary := range map[string]string{"plegwatch": p.watch, "nodeagent": p.nodeagent} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
		cmd.Dir, cmd.Env = filepath.Join("../../..", module), append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", module, err, out)
		}
	}
	return p
}

// valve is a writer that blocks while it is locked. A locked valve blocks the process that writes
// to it.
type valve struct{ sync.Mutex }

func (v *valve) Write(p []byte) (int, error) {
	v.Lock()
	defer v.Unlock()
	return len(p), nil
}

// startWatch runs plegwatch on a node and serves its metrics at address.
func (p programs) startWatch(t *testing.T, node *criserver.Server, address string, args ...string) (stdout *valve) {
	t.Helper()
	stdout = &valve{}
	run(t, stdout, p.watch, append([]string{"--runtime-endpoint", node.Endpoint(), "--listen", address,
		"--output", "json", "--for", "10m"}, args...)...)
	answers(t, "http://"+address+"/metrics")
	return stdout
}

// startAgent runs nodeagent with one pod on a new node, and serves its metrics at address.
func (p programs) startAgent(t *testing.T, address string) *criserver.Server {
	t.Helper()
	sleep := func(ctx context.Context, p *criserver.Process) int {
		select {
		case <-ctx.Done():
		case <-p.Terminate:
		}
		return 0
	}
	node := proctest.CRIServer(t, criserver.WithPrograms(map[string]criserver.Program{"localhost/sleep": {Main: sleep}}))
	dir := t.TempDir()
	manifest := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sleep"}, "spec": {"containers": [
		{"name": "sleep", "image": "localhost/sleep", "imagePullPolicy": "IfNotPresent"}]}}`
	if err := os.WriteFile(filepath.Join(dir, "sleep.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, nil, p.nodeagent, "--runtime-endpoint", node.Endpoint(), "--manifests", dir,
		"--state-dir", t.TempDir(), "--listen", address, "--node-name", "worker-1")
	answers(t, "http://"+address+"/metrics")
	return node
}

// startFake runs a generator on a fake runtime in this process, and serves its metrics until end is
// called.
func startFake(t *testing.T) (rt *plegtest.Runtime, address string, end func()) {
	t.Helper()
	rt = plegtest.NewRuntime()
	registry := prometheus.NewRegistry()
	version := prometheus.NewGauge(prometheus.GaugeOpts{Name: "pleg_build_info", Help: "The version of the agent.",
		ConstLabels: prometheus.Labels{"version": "v0.0.0"}})
	version.Set(1)
	registry.MustRegister(version, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	generator := pleg.New(rt,
		pleg.WithLogger(logr.Discard()), pleg.WithRegisterer(registry))
	generator.Start(t.Context())
	t.Cleanup(generator.Stop)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	end = func() {
		server.CloseClientConnections()
		server.Close()
	}
	t.Cleanup(end)
	return rt, server.Listener.Addr().String(), end
}
