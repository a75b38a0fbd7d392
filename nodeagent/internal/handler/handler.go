// Package handler runs the probes and hooks of manifests: commands, HTTP requests, TCP connections
// and gRPC health checks. The details match the kubelet's, because programs in containers depend on
// them.
package handler

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

// probeAgent and hookAgent are the User-Agents of probes and hooks. They contain the version of
// Kubernetes that the agent follows.
const probeAgent, hookAgent = "kube-probe/1.37", "kube-lifecycle/1.37"

// hookTimeout limits an HTTP hook. maxBody limits the bytes of a response that are read.
// maxRedirects limits the redirects that are followed.
const hookTimeout, maxBody, maxRedirects = time.Minute, 10 << 10, 10

// ErrNotMade is wrapped by the error of a check that could not be made. The error of a failed check
// does not wrap ErrNotMade.
var ErrNotMade = errors.New("it could not be made")

// Target is a container with probes or hooks.
type Target struct {
	Runtime   *runtime.Client
	Container *v1.Container
	ID, PodIP string
}

// Probe runs a probe of the container once. It returns an error if the probe fails.
func (t Target) Probe(ctx context.Context, p *v1.Probe) error {
	timeout := time.Duration(p.TimeoutSeconds) * time.Second
	if p.Exec != nil {
		return t.exec(ctx, p.Exec, timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return t.http(ctx, p.HTTPGet, probeAgent)
	case p.TCPSocket != nil:
		return t.tcp(ctx, p.TCPSocket)
	default:
		return t.grpc(ctx, p.GRPC)
	}
}

// Hook runs a lifecycle hook. limit is the timeout of a command. If limit is 0, only the timeout of
// the call to the runtime limits the command.
func (t Target) Hook(ctx context.Context, h *v1.LifecycleHandler, limit time.Duration) error {
	switch {
	case h.Exec != nil:
		return t.exec(ctx, h.Exec, limit)
	case h.HTTPGet != nil:
		ctx, cancel := context.WithTimeout(ctx, hookTimeout)
		defer cancel()
		return t.http(ctx, h.HTTPGet, hookAgent)
	default:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
		}
		return nil
	}
}

// exec runs a command in the container. The command succeeds if it exits with 0.
func (t Target) exec(ctx context.Context, action *v1.ExecAction, timeout time.Duration) error {
	output, code, err := t.Runtime.Exec(ctx, t.ID, action.Command, timeout)
	switch {
	case errors.Is(err, runtime.ErrExecTimeout):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotMade, err)
	case code != 0:
		return fmt.Errorf("%q exits with %d: %.100s", action.Command, code, output)
	}
	return nil
}

// http makes a GET request. The check succeeds if the status is from 200 to 399. A redirect to
// another host counts as success; http does not follow it.
func (t Target) http(ctx context.Context, get *v1.HTTPGetAction, agent string) error {
	req, err := t.request(ctx, get, agent)
	if err != nil {
		return err
	}
	client := &http.Client{CheckRedirect: redirect, Transport: &http.Transport{ // without a proxy
		// The certificate of a program in a container is valid for a name, never for the
		// container's address.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet
		DisableKeepAlives: true, DisableCompression: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// If the connection has switched protocols, the end of ctx does not close it. So the body is
	// closed here when ctx ends.
	defer context.AfterFunc(ctx, func() { _ = resp.Body.Close() })()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", req.URL, err)
	}
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s answers %s: %.100q", req.URL, resp.Status, body)
	}
	return nil
}

func redirect(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(via) >= maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

func (t Target) request(ctx context.Context, get *v1.HTTPGetAction, agent string) (*http.Request, error) {
	host, err := t.address(get.Host, get.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(get.Path) // a host in the path is ignored
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = cmp.Or(strings.ToLower(string(get.Scheme)), "http"), host
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotMade, err)
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	req.Host = req.Header.Get("Host")
	for name, value := range map[string]string{"User-Agent": agent, "Accept": "*/*"} {
		if req.Header.Values(name) == nil {
			req.Header.Set(name, value)
		}
	}
	if req.Header.Get("Accept") == "" { // an empty Accept is not sent, like an empty User-Agent
		req.Header.Del("Accept")
	}
	return req, nil
}

// tcp opens a connection and closes it.
func (t Target) tcp(ctx context.Context, socket *v1.TCPSocketAction) error {
	host, err := t.address(socket.Host, socket.Port)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// grpc calls the gRPC health service.
func (t Target) grpc(ctx context.Context, action *v1.GRPCAction) error {
	host, err := t.address("", intstr.FromInt32(action.Port))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithUserAgent(probeAgent), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx,
		&grpc_health_v1.HealthCheckRequest{Service: ptr.Deref(action.Service, "")})
	if err == nil && resp.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("%s answers %s", host, resp.Status)
	}
	return err
}

// address returns the host and port of a check. If host is empty, the host is the pod's address.
func (t Target) address(host string, port intstr.IntOrString) (string, error) {
	number, err := plan.Port(t.Container, port)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotMade, err)
	}
	if host = cmp.Or(host, t.PodIP); host == "" {
		return "", fmt.Errorf("%w: the pod has no address", ErrNotMade)
	}
	return net.JoinHostPort(host, fmt.Sprint(number)), nil
}
