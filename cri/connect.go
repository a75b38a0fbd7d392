package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// DefaultConnectTimeout is how long Connect waits if its context has no deadline.
const DefaultConnectTimeout = 5 * time.Second

// usualEndpoints are the endpoints on which runtimes listen by default.
var usualEndpoints = []string{
	"unix:///run/containerd/containerd.sock",
	"unix:///run/crio/crio.sock",
	"unix:///var/run/cri-dockerd.sock",
	"unix:///run/k3s/containerd/containerd.sock",
}

// defaultEndpoints returns the default endpoints. With WithHostRoot, they are below the host root,
// with /run instead of /var/run, because /var/run is often a link that leads out of the host root.
func (o *options) defaultEndpoints() []string {
	if o.hostRoot == "" {
		return usualEndpoints
	}
	endpoints := make([]string, len(usualEndpoints))
	for i, endpoint := range usualEndpoints {
		path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix://"), "/var")
		endpoints[i] = "unix://" + filepath.Join(o.hostRoot, path)
	}
	return endpoints
}

// Connect waits until the runtime at an endpoint answers a Version call, and returns a Runtime for
// this runtime. An endpoint is "unix:///path", "unix:/path" or an absolute path. If the endpoint is
// empty, Connect tries the default sockets of containerd, CRI-O, cri-dockerd and k3s, in that
// order; see WithHostRoot.
//
// Connect fails at once if the socket does not exist. If the runtime does not answer, Connect waits
// until ctx ends, or for DefaultConnectTimeout if ctx has no deadline. The error names each
// endpoint that was tried, and the reason why it failed.
//
// The connection is restored automatically: while the runtime is down, calls fail at once, and gRPC
// tries to reconnect every 100 ms to 500 ms. Close ends the connection. If your program may start
// before the runtime, use Dial.
func Connect(ctx context.Context, endpoint string, opts ...Option) (*Runtime, error) {
	if endpoint != "" {
		return connectFirst(ctx, []string{endpoint}, opts)
	}
	o := newOptions(opts)
	return connectFirst(ctx, o.defaultEndpoints(), opts)
}

// wallClock is the real clock, for deadlines of contexts. WithClock does not replace it.
var wallClock clock.RealClock

// connectFirst connects to the first endpoint that answers.
func connectFirst(ctx context.Context, endpoints []string, opts []Option) (*Runtime, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultConnectTimeout)
		defer cancel()
	}
	var failures []error
	for i, endpoint := range endpoints {
		// Each endpoint that exists gets an equal share of the remaining time, so that a socket that
		// does not answer leaves time for the others.
		others := 0
		for _, other := range endpoints[i+1:] {
			if path, err := socketPath(other); err == nil && fileExists(path) {
				others++
			}
		}
		deadline, _ := ctx.Deadline()
		share := deadline.Sub(wallClock.Now()) / time.Duration(others+1)
		r, err := connect(ctx, share, endpoint, opts)
		if err == nil {
			return r, nil
		}
		failures = append(failures, err)
	}
	if len(endpoints) == 1 {
		return nil, fmt.Errorf("cri: connect: %w", failures[0])
	}
	return nil, fmt.Errorf("cri: connect: no runtime answers at any of the default sockets:\n%w",
		errors.Join(failures...))
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// connect connects to one endpoint.
func connect(ctx context.Context, timeout time.Duration, endpoint string, opts []Option) (*Runtime, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	case info.Mode()&os.ModeSocket == 0:
		return nil, fmt.Errorf("endpoint %s: not a socket", endpoint)
	}
	// An attempt to connect may last a second longer than the Version call below, so that the call
	// times out first.
	r, err := newDialed(newDialer(path), timeout+time.Second, opts)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}

	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := r.askVersion(ctx, target{}); err != nil {
		// gRPC words a missed deadline in several ways. This message names the timeout.
		if status.Code(err) == codes.DeadlineExceeded {
			err = fmt.Errorf("no answer within %v: %w", timeout.Round(time.Millisecond), err)
		}
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}
