package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func TestListenAddress(t *testing.T) {
	for address, want := range map[string]string{
		"9100": "127.0.0.1:9100", ":9100": "127.0.0.1:9100",
		"0.0.0.0:9100": "0.0.0.0:9100", "[::1]:9100": "[::1]:9100", "localhost:http": "localhost:http",
	} {
		if got := listenAddress(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// /metrics includes the build, the node name, and the Go and process metrics. Profiles are served
// only with --pprof. Requests with a body are refused.
func TestServes(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--pprof=false", "--pprof"} {
		ctx, signal := context.WithCancel(t.Context())
		defer signal()
		var stdout, stderr console
		w := startWatch(ctx, []string{"--listen", "0", "--node-name", "node-7", flag}, &stdout, &stderr)
		url := "http://" + served(t, &stderr)
		_, metrics := get(t, url+"/metrics")
		for _, series := range []string{
			`pleg_build_info\{goversion="go1\.\S+",revision="\w+",version="devel"\} 1`, `kubelet_node_name\{node="node-7"\} 1`,
			`go_goroutines \d+`, `process_resident_memory_bytes \S+`,
		} {
			if !regexp.MustCompile(`(?m)^` + series + `$`).MatchString(metrics) {
				t.Errorf("no series like %s in\n%s", series, metrics)
			}
		}
		code, body := get(t, url+"/debug/pprof/goroutine?debug=1")
		if profiles := strings.Contains(body, "goroutine profile"); profiles != (flag == "--pprof") {
			t.Errorf("%s: %d\n%.300s", flag, code, body)
		}
		for _, path := range []string{"/", "/metrics", "/healthz"} {
			resp, err := http.Post(url+path, "text/plain", strings.NewReader("x"))
			if err != nil || resp.StatusCode < 400 || resp.StatusCode >= 500 {
				t.Errorf("%s takes a body: %v, %v", path, resp, err)
			} else {
				resp.Body.Close()
			}
		}
		http.DefaultClient.CloseIdleConnections()
		signal()
		w.await(t)
	}
}

// The agent serves a unix socket that only its own user may open. It replaces a socket that a
// killed agent left behind.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agent.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()

	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr, second console
	w := startWatch(ctx, []string{"--listen", "unix://" + path + ",0"}, &stdout, &stderr)
	stderr.await(t, regexp.MustCompile(`address=unix://`+path))
	served(t, &stderr) // waits for the TCP address
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	await(t, func() bool {
		var stdout, stderr console
		return run(t.Context(), []string{"--check", "--listen", "unix://" + path}, &stdout, &stderr) == exitHealthy
	})
	if code := run(t.Context(), []string{"--listen", "unix://" + path}, &stdout, &second); code != exitFailed ||
		!strings.Contains(second.String(), "address already in use") {
		t.Errorf("a second agent has taken the socket of the first: exit code %d; stderr:\n%s", code, &second)
	}
	file := filepath.Join(t.TempDir(), "no.sock")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), []string{"--listen", "unix://" + file, "-f", "1s"}, &stdout, &second); code != exitFailed {
		t.Errorf("a file is taken for a socket: exit code %d", code)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "x" {
		t.Errorf("the file is gone: %v", err)
	}
	signal()
	w.await(t)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// If another process has taken the port, the agent still runs and serves its other addresses.
func TestPortIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := proctest.CRIServer(t)
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	var stdout, stderr console
	path := filepath.Join(t.TempDir(), "agent.sock")
	w := startWatch(ctx, []string{"--wait", "-r", s.Endpoint(), "--listen", l.Addr().String(),
		"--listen", "unix://" + path}, &stdout, &stderr)
	stderr.await(t, regexp.MustCompile(`level=ERROR msg="The address is taken`))
	stderr.await(t, regexp.MustCompile(`address=unix://`))
	stderr.await(t, regexp.MustCompile(`msg="Healthy: `))
	l.Close()
	if address := served(t, &stderr); address != l.Addr().String() {
		t.Errorf("served at %s", address)
	}
	signal()
	w.await(t)
}

// memoryLimit is the memory limit in the manifests, in MiB.
const memoryLimit = 128

// plegwatch/deploy/README.md shows a figure that was measured with -hostile.for=5m
// -hostile.idle=8000.
var (
	hostileFor  = flag.Duration("hostile.for", 5*time.Second, "how long TestHostileClients lasts")
	hostileIdle = flag.Int("hostile.idle", 1000, "the connections of TestHostileClients that send nothing")
)

// Clients that never read, and clients that send nothing, use a bounded amount of the agent's
// memory. They do not lock out other clients.
func TestHostileClients(t *testing.T) {
	const pipelining = 350
	s := proctest.CRIServer(t)
	for i := range 110 {
		sandbox := s.RunPod(criserver.PodConfig{Namespace: "production", Name: fmt.Sprint("pod-", i)})
		if _, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "app"}); err != nil {
			t.Fatal(err)
		}
	}
	p := startProcess(t, nil, "-r", s.Endpoint(), "--listen", "0", "-o", "none")
	address := served(t, p.Log)

	ctx, end := context.WithTimeout(t.Context(), *hostileFor)
	var clients sync.WaitGroup
	defer func() { end(); clients.Wait() }()
	var connections atomic.Int64
	attack := func(n int, request string) {
		for range n {
			clients.Go(func() {
				for ctx.Err() == nil {
					if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
						connections.Add(1)
						done := context.AfterFunc(ctx, func() { conn.Close() })
						for err == nil && request != "" {
							_, err = conn.Write([]byte(request))
						}
						if err == nil {
							_, _ = conn.Read(make([]byte, 1)) // blocks until the agent closes the connection
						}
						conn.Close()
						done()
					}
					select {
					case <-ctx.Done():
					case <-time.After(time.Second): // then connects again
					}
				}
			})
		}
	}
	attack(pipelining, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 100))
	attack(*hostileIdle, "")

	// Browsers and Prometheus retry if their connection was closed, so this client does too.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	ask := func(path string) error {
		resp, err := client.Get("http://" + address + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	var asked, again int
	var slowest time.Duration
	for ; ctx.Err() == nil; asked++ {
		began := time.Now()
		for ask([]string{"/", "/healthz", "/metrics"}[asked%3]) != nil {
			if again++; time.Since(began) > patience {
				t.Fatal("the agent does not answer")
			}
		}
		slowest = max(slowest, time.Since(began))
		time.Sleep(100 * time.Millisecond)
	}
	clients.Wait()
	highest := highestMemory(t, p.Pid())
	t.Logf("%v, %d connections, %d clients that send nothing: %d answers, %d asked for again, the slowest after %v; "+
		"resident memory at most %d MiB", *hostileFor, connections.Load(), *hostileIdle, asked, again,
		slowest.Round(time.Millisecond), highest)
	if highest >= memoryLimit {
		t.Errorf("its resident memory was %d MiB, and its limit is %d", highest, memoryLimit)
	}
	if err := p.End(syscall.SIGTERM, patience); err != nil {
		t.Error(err)
	}
}

// highestMemory returns the peak resident memory of a process in MiB.
func highestMemory(t *testing.T, pid int) (mib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// The handler is called at most once a second for each encoding, however clients spell their
// headers.
func TestAnswersAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		shared := &answers{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			made++
			_, _ = io.WriteString(w, r.Header.Get("Accept-Encoding"))
		})}
		for i := range 100 {
			for accepts, want := range map[string]string{
				"": "identity", "br, gzip;q=0.5": "gzip", "gzip;q=0": "identity", "deflate, gzip": "gzip",
			} {
				r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				r.Header.Set("Accept", fmt.Sprintf("text/html;q=0.%d, text/plain", i+1))
				r.Header.Set("Accept-Encoding", accepts)
				w := httptest.NewRecorder()
				shared.ServeHTTP(w, r)
				if got := w.Body.String(); got != want {
					t.Errorf("%q: %s, want %s", accepts, got, want)
				}
			}
		}
		if made != 2 { // encodings
			t.Errorf("400 requests led to %d answers", made)
		}
	})
}
