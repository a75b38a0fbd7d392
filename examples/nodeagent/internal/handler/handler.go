// Package handler does what a probe or a hook of a manifest says: commands, HTTP requests, TCP connections, gRPC health
// checks. How it does so is the kubelet's, for programs in containers rely on it.
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
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubepleg/pleg/examples/nodeagent/internal/plan"
	"github.com/kubepleg/pleg/examples/nodeagent/internal/runtime"
)

// The user agents of probes and of hooks, with the version of Kubernetes that the agent follows.
const (
	ProbeAgent = "kube-probe/1.36"
	HookAgent  = "kube-lifecycle/1.36"
)

// hookTimeout bounds an HTTP hook.
const hookTimeout = time.Minute

// maxBody is how much of a response is read, maxRedirects how many are followed.
const maxBody, maxRedirects = 10 << 10, 10

// ErrFailed is wrapped by the error of a check that was made and failed, as opposed to one that could not be made.
var ErrFailed = errors.New("failed")

// Exec runs a command in a container. It succeeds if it exits with 0.
func Exec(ctx context.Context, client *runtime.Client, id string, action *v1.ExecAction, timeout time.Duration) error {
	output, code, err := client.Exec(ctx, id, action.Command, timeout)
	switch {
	case errors.Is(err, runtime.ErrExecTimeout):
		return fmt.Errorf("%w: %w", ErrFailed, err)
	case err == nil && code != 0:
		return fmt.Errorf("%w: %q exits with %d: %.100s", ErrFailed, action.Command, code, output)
	}
	return err
}

// Hook runs a lifecycle hook of a container. A command ends after limit; if that is 0, when the call for it does.
func Hook(ctx context.Context, client *runtime.Client, c *v1.Container, h *v1.LifecycleHandler, id, podIP string,
	limit time.Duration) error {
	switch {
	case h.Exec != nil:
		return Exec(ctx, client, id, h.Exec, limit)
	case h.HTTPGet != nil:
		ctx, cancel := context.WithTimeout(ctx, hookTimeout)
		defer cancel()
		return HTTP(ctx, c, h.HTTPGet, podIP, HookAgent)
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
		}
		return nil
	}
	return errors.New("it has no handler")
}

// HTTP makes a GET request to a container. A status from 200 to 399 is a success. Redirects are followed on the same
// host; one to another host is a success too.
func HTTP(ctx context.Context, c *v1.Container, get *v1.HTTPGetAction, podIP, agent string) error {
	req, err := request(ctx, c, get, podIP, agent)
	if err != nil {
		return err
	}
	client := &http.Client{CheckRedirect: redirect, Transport: &http.Transport{ // without a proxy
		// What runs in a container has a certificate for some name, never for its address.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet
		DisableKeepAlives: true, DisableCompression: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	defer resp.Body.Close()
	// ctx does not end a connection that has switched protocols.
	defer context.AfterFunc(ctx, func() { _ = resp.Body.Close() })()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fmt.Errorf("%w: reading the answer of %s: %w", ErrFailed, req.URL, err)
	}
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%w: %s answers %s: %.100q", ErrFailed, req.URL, resp.Status, body)
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

func request(ctx context.Context, c *v1.Container, get *v1.HTTPGetAction, podIP, agent string) (*http.Request, error) {
	host, err := address(c, get.Host, podIP, get.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = cmp.Or(strings.ToLower(string(get.Scheme)), "http"), host
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("making a request to %s: %w", u, err)
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
		}
	}
	for name, value := range map[string]string{"User-Agent": agent, "Accept": "*/*"} {
		if _, set := req.Header[name]; !set {
			req.Header.Set(name, value)
		}
	}
	return req, nil
}

// TCP opens a connection to a container and closes it.
func TCP(ctx context.Context, c *v1.Container, socket *v1.TCPSocketAction, podIP string) error {
	host, err := address(c, socket.Host, podIP, socket.Port)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return conn.Close()
}

// GRPC asks a container's gRPC health service.
func GRPC(ctx context.Context, c *v1.Container, action *v1.GRPCAction, podIP string) error {
	host, err := address(c, "", podIP, intstr.FromInt32(action.Port))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithUserAgent(ProbeAgent), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", host, err)
	}
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx,
		&grpc_health_v1.HealthCheckRequest{Service: ptr.Deref(action.Service, "")})
	if err == nil && resp.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("%s answers %s", host, resp.Status)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return err
}

// address returns the host and port of a check; the host is the pod's unless one is given.
func address(c *v1.Container, host, podIP string, port intstr.IntOrString) (string, error) {
	number, err := plan.Port(c, port)
	if err != nil {
		return "", err
	}
	if host = cmp.Or(host, podIP); host == "" {
		return "", errors.New("the pod has no address")
	}
	return net.JoinHostPort(host, strconv.Itoa(int(number))), nil
}
