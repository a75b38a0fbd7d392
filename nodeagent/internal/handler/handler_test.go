package handler

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubepleg/pleg/internal/test/proctest"
)

// probe runs a probe once, with a timeout in seconds.
func probe(t *testing.T, target Target, h v1.ProbeHandler, timeout int32) error {
	t.Helper()
	return target.Probe(t.Context(), &v1.Probe{ProbeHandler: h, TimeoutSeconds: timeout})
}

// patience is a timeout of a probe that has a result before.
const patience = 60

func portOf(t *testing.T, address string) int32 {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(port)
}

// An HTTP check succeeds if the status is 2xx or 3xx, and accepts any certificate. It follows
// redirects only to the same host. It reads only a limited part of the response, and sends a
// User-Agent.
func TestHTTP(t *testing.T) {
	connections := map[string]bool{} // by client address, which differs for each connection
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		connections[r.RemoteAddr] = true
		code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.WriteHeader(code)
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != probeAgent || r.Header.Get("Accept") != "*/*" || r.Host != "name.example" ||
			r.Header.Get("X") != "y" ||
			r.URL.RawQuery != "q=1" {
			http.Error(w, fmt.Sprint(r.Host, r.Header, r.URL), http.StatusBadRequest)
		}
	})
	mux.Handle("/away", http.RedirectHandler("http://other.invalid/", http.StatusFound))
	mux.Handle("/here", http.RedirectHandler("/500", http.StatusFound))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 100000)); err != nil {
				return
			}
		}
	})
	mux.Handle("/switch", proctest.SwitchesProtocols(t))
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	check := func(server *httptest.Server, get v1.HTTPGetAction) error {
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		get.Port, get.Scheme = intstr.FromString("http"), v1.URIScheme(strings.ToUpper(u.Scheme))
		c := &v1.Container{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: portOf(t, u.Host)}}}
		timeout := int32(patience)
		if get.Path == "/hang" || get.Path == "/switch" { // they have no end
			timeout = 1
		}
		return probe(t, Target{Container: c, PodIP: "127.0.0.1"}, v1.ProbeHandler{HTTPGet: &get}, timeout)
	}
	for path, ok := range map[string]bool{"/200": true, "/204": true, "/304": true, "/399": true, "/400": false,
		"/500":  false,
		"/away": true, "/here": false, "/loop": false, "/large": true, "/hang": false, "/switch": false} {
		if err := check(plain, v1.HTTPGetAction{Path: path}); (err == nil) != ok || errors.Is(err, ErrNotMade) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := check(secure, v1.HTTPGetAction{Path: "/200"}); err != nil {
		t.Error(err)
	}
	if err := check(plain, v1.HTTPGetAction{Path: "/headers?q=1", HTTPHeaders: []v1.HTTPHeader{
		{Name: "Host", Value: "name.example"}, {Name: "X", Value: "y"}}}); err != nil {
		t.Error(err)
	}
	if len(connections) != 8 { // six status codes, /500 after the redirect of /here, and /200 over TLS
		t.Errorf("%d connections", len(connections))
	}
}

// A TCP check opens a connection.
func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket := &v1.TCPSocketAction{Port: intstr.FromInt32(portOf(t, l.Addr().String()))}
	target, h := Target{Container: &v1.Container{}, PodIP: "127.0.0.1"}, v1.ProbeHandler{TCPSocket: socket}
	if err := probe(t, target, h, patience); err != nil {
		t.Error(err)
	}
	l.Close()
	if err := probe(t, target, h, patience); err == nil || errors.Is(err, ErrNotMade) {
		t.Errorf("a dead port: %v", err)
	}
	if err := probe(t, Target{Container: &v1.Container{}}, h, patience); !errors.Is(err, ErrNotMade) {
		t.Errorf("a pod without an address: %v", err)
	}
	socket.Port = intstr.FromString("http")
	if err := probe(t, target, h, patience); !errors.Is(err, ErrNotMade) {
		t.Errorf("a port that does not exist: %v", err)
	}
}

// A gRPC check calls the health service.
func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, state)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	state.SetServingStatus("bad", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	action := &v1.GRPCAction{Port: portOf(t, l.Addr().String())}
	target, h := Target{Container: &v1.Container{}, PodIP: "127.0.0.1"}, v1.ProbeHandler{GRPC: action}
	for service, ok := range map[string]bool{"": true, "bad": false, "unknown": false} {
		action.Service = &service
		if err := probe(t, target, h, patience); (err == nil) != ok || errors.Is(err, ErrNotMade) {
			t.Errorf("service %q: %v", service, err)
		}
	}
	server.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := probe(t, target, h, patience); err == nil || errors.Is(err, ErrNotMade) {
		t.Errorf("a dead port: %v", err)
	}
}

// Requests are like the kubelet's. A path may contain every part of a URL except the host. Empty
// User-Agent and Accept headers are not sent. The User-Agent contains the version of the Kubernetes
// release that the agent follows.
func TestRequest(t *testing.T) {
	target := Target{Container: &v1.Container{}, PodIP: "10.0.0.7"}
	for path, want := range map[string]string{
		"": "http://10.0.0.7:80", "/": "http://10.0.0.7:80/", "/x?q=1": "http://10.0.0.7:80/x?q=1",
		"x":     "http://10.0.0.7:80/x",
		"//x/y": "http://10.0.0.7:80/y", "http://x/y": "http://10.0.0.7:80/y", "/%zz": "http://10.0.0.7:80/%25zz",
	} {
		req, err := target.request(t.Context(), &v1.HTTPGetAction{Path: path, Port: intstr.FromInt32(80)}, probeAgent)
		if err != nil || req.URL.String() != want {
			t.Errorf("%q: %v, %v; want %s", path, req, err, want)
		}
	}
	empty := []v1.HTTPHeader{{Name: "User-Agent"}, {Name: "accept"}}
	req, err := target.request(t.Context(), &v1.HTTPGetAction{Port: intstr.FromInt32(80), HTTPHeaders: empty}, probeAgent)
	if err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	if err := req.Write(&sent); err != nil || strings.Contains(sent.String(), "Agent") ||
		strings.Contains(sent.String(), "Accept") {
		t.Errorf("%q, %v", sent.String(), err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`k8s.io/kubelet v0\.(\d+)`).FindSubmatch(mod)
	if want := "kube-probe/1." + string(release[1]); probeAgent != want {
		t.Errorf("%s, want %s", probeAgent, want)
	}
}
