package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg/nodeagent/internal/page"
)

// addressOf waits until an agent has printed its address, and returns the address.
func addressOf(t *testing.T, stderr output) string {
	t.Helper()
	stderr.await(t, `http://[^/]+/`)
	return regexp.MustCompile(`http://([^/]+)/`).FindStringSubmatch(stderr.String())[1]
}

// The pages answer only read requests that name a loopback host. Scripts and frames of other web
// sites cannot read the pages, under any host name.
func TestGuard(t *testing.T) {
	stdout, stderr, ended := begin(t, parsed(t))
	defer ended()
	stdout.await(t, `shop/web +Running`) // the agent is healthy
	address := addressOf(t, stderr)
	ask := func(method, path, host string, header ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host, req.Close = host, true
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	_, port, _ := net.SplitHostPort(address)
	for _, path := range []string{"/", "/pods", "/healthz", "/metrics", "/events/"} {
		for _, c := range []struct {
			method, host string
			header       []string
			want         int
		}{
			{"GET", address, nil, 200},
			{"GET", "localhost:" + port, nil, 200},
			{"GET", "[::1]:" + port, nil, 200},
			{"GET", address, []string{"Origin", "http://" + address, "Sec-Fetch-Site", "same-origin"}, 200},
			{"GET", address,
				[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
			{"GET", "evil.example:" + port, nil, 403},
			{"GET", "localhost.evil.example", nil, 403},
			{"GET", "192.0.2.7:" + port, nil, 403},
			{"GET", address, []string{"Origin", "http://evil.example"}, 403},
			{"GET", address, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
			{"GET", address, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate",
				"Sec-Fetch-Dest", "iframe"}, 403},
			{"POST", address, nil, 405},
		} {
			if got := ask(c.method, path, c.host, c.header...); got != c.want {
				t.Errorf("%s %s of %s with %q: %d, want %d", c.method, path, c.host, c.header, got, c.want)
			}
		}
	}
}

// The pages contain no values of environment variables, no headers of probes and hooks, and no
// annotations, because these may be secrets. The agent's files contain them, but are private.
func TestPodsWithoutSecrets(t *testing.T) {
	dir := t.TempDir()
	const manifest = `{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {kept: s3cret, priority: s3cret}},
  spec: {priority: 7,
    initContainers: [{name: i, image: localhost/exit, imagePullPolicy: Never, args: ['0', 0s],
      env: [{name: A, value: s3cret}]}],
    containers: [{name: c, image: localhost/sleep, imagePullPolicy: Never, env: [{name: PASSWORD, value: s3cret}],
      livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: Authorization, value: s3cret}]}},
      lifecycle: {preStop: {httpGet: {port: 1, httpHeaders: [{name: Authorization, value: s3cret}]}}}}]}}`
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, ended := begin(t, parsed(t, "--manifests", dir))
	defer ended()
	stdout.await(t, `default/a +Running +ready 1/1`)
	for _, path := range []string{"/", "/pods", "/metrics", "/events/"} {
		if body := string(get(t, stderr, path)); strings.Contains(body, "s3cret") {
			t.Errorf("%s: %s", path, body)
		}
	}
	a := served(t, stderr)["a"]
	if c := a.Spec.Containers[0]; c.Env[0].Name != "PASSWORD" || c.Image != "localhost/sleep" {
		t.Errorf("%+v", a)
	}
}

// While another program uses the port, the pods run and the agent logs the error. Once the port is
// free, the agent serves its page.
func TestTakenPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, ended := begin(t, parsed(t, "--listen", other.Addr().String()))
	defer ended()
	stdout.await(t, `shop/web +Running +ready 1/1`)
	stderr.await(t, `"The page of the node is not served; .*address already in use`)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if got := addressOf(t, stderr); got != other.Addr().String() {
		t.Errorf("served at %s", got)
	}
	get(t, stderr, "/pods")
}

// Clients that do not read their answers or keep streams open, and clients that send nothing, do not
// lock out other clients.
func TestHostileClients(t *testing.T) {
	stdout, stderr, ended := begin(t, parsed(t))
	defer ended()
	stdout.await(t, `shop/web +Running`) // the agent is healthy
	address := addressOf(t, stderr)
	for i := range 3 * page.MaxConnections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		request := "GET /events/?format=stream HTTP/1.1\r\nHost: " + address + "\r\n\r\n"
		if i%2 == 0 { // the kernel's buffers are smaller than these answers
			request = strings.Repeat("GET /metrics HTTP/1.1\r\nHost: "+address+"\r\n\r\n", 1000)
		}
		go func() { _, _ = io.WriteString(conn, request) }()
	}
	for _, path := range []string{"/healthz", "/metrics", "/pods", "/", "/events/"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err = io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", path, resp.Status, err)
		}
		resp.Body.Close()
	}
}

// A request with very long headers is refused.
func TestLongHeader(t *testing.T) {
	_, stderr, ended := begin(t, parsed(t))
	defer ended()
	url := "http://" + addressOf(t, stderr) + "/pods"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(resp.Status)
	}
}

// If clients open many idle connections, the agent keeps at most MaxConnections of them open. The
// agent can still end.
func TestConnectionsAreBounded(t *testing.T) {
	_, stderr, ended := begin(t, parsed(t))
	address := addressOf(t, stderr)
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := files()
	const many, others = 4 * page.MaxConnections, 20 // others allows for other files that the agent opens
	for range many {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	most := 0
	for range 50 {
		most = max(most, files()-before-many)
		time.Sleep(10 * time.Millisecond)
	}
	if most > page.MaxConnections+others {
		t.Errorf("the agent holds %d connections", most)
	}
	ended()
}
