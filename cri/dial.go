package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The delay between attempts to reach a runtime that is down. gRPC varies each by a fifth.
// The kubelet's longest is 3 s. Here it is shorter, so that with a relist every second the
// first list begins within 2 s of the socket's appearance: 0.6 s until the next attempt, and
// 1 s until the next list. An attempt on a missing socket is one system call.
const (
	minDialDelay = 100 * time.Millisecond
	maxDialDelay = 500 * time.Millisecond
)

// maxSocketPath is the length of the longest path of a socket, which is Linux's.
const maxSocketPath = 107

// Dial returns a Runtime for an endpoint, "unix:///path", "unix:/path" or an absolute
// path, whether or not a runtime is there yet. It makes no call and does not block: it
// connects in the background, and tries again with a delay of 100 ms to 500 ms until it
// succeeds or Close is called. Once connected, the Runtime is like one from Connect.
//
// Before that, calls fail at once with the code Unavailable. The error names the endpoint
// and says why the last attempt failed, so that the health of a generator says what it
// waits for. A call waits only for the first attempt, and for the first one after a
// connection has broken. Such an attempt is over in a moment, or after 5 s if something
// accepts connections on the socket and does not answer. With [grpc.WaitForReady] as a
// default call option in WithDialOptions, calls wait instead of failing, until their context
// ends.
//
// Dial fails only if no runtime can ever be at the endpoint: it is empty, has another
// scheme than unix, or its path is not absolute, is longer than a socket's may be, or ends
// in a slash. A path at which there is nothing, a file or a directory may have a socket
// later. Dial does not search the default sockets.
func Dial(endpoint string, opts ...Option) (*Runtime, error) {
	if endpoint == "" {
		return nil, errors.New("cri: dial: the endpoint is empty: unix:///path or an absolute path is needed")
	}
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cri: dial: %w", err)
	}
	r, err := newDialed(path, DefaultConnectTimeout, opts)
	if err != nil {
		return nil, fmt.Errorf("cri: dial: endpoint %s: %w", endpoint, err)
	}
	r.conn.Connect() // in goroutines of the connection
	return r, nil
}

// newDialed returns a Runtime with a connection of its own to a socket, on which no attempt
// has been made. An attempt ends after the given time.
func newDialed(path string, attempt time.Duration, opts []Option) (*Runtime, error) {
	socket := url.URL{Scheme: "unix", Path: path}
	dials := new(atomic.Int64)
	dialOptions := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceivedBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  minDialDelay,
				Multiplier: backoff.DefaultConfig.Multiplier,
				Jitter:     backoff.DefaultConfig.Jitter,
				MaxDelay:   maxDialDelay,
			},
			MinConnectTimeout: attempt,
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}),
	}, newOptions(opts).dialOptions...)
	conn, err := grpc.NewClient(socket.String(), dialOptions...)
	if err != nil {
		return nil, err
	}
	r := NewRuntime(conn, opts...)
	r.conn, r.dials, r.endpoint = conn, dials, "unix://"+path
	return r, nil
}

// explain adds to the error of a call that the runtime has never answered, if the call
// found no connection: a user who has started the agent first wants to know that it waits.
func (r *Runtime) explain(err error) error {
	if r.conn == nil || r.version.Load() != nil || status.Code(err) != codes.Unavailable {
		return err
	}
	return fmt.Errorf("the runtime has not answered yet: %w", err)
}

// socketPath returns the path of the socket of an endpoint. It fails if no socket can be
// there.
func socketPath(endpoint string) (string, error) {
	path, hasScheme := strings.CutPrefix(endpoint, "unix://")
	if !hasScheme {
		path, hasScheme = strings.CutPrefix(endpoint, "unix:") // as gRPC has it
	}
	switch {
	case !hasScheme && strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("endpoint %s: only unix sockets are supported: unix:///path or an absolute path",
			endpoint)
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("endpoint %s: the path of the socket is not absolute: unix:///path or /path is",
			endpoint)
	case strings.HasSuffix(path, "/"):
		return "", fmt.Errorf("endpoint %s: the path of the socket ends in a slash", endpoint)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("endpoint %q: the path of the socket has a zero byte", endpoint)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("endpoint %s: the path of the socket has %d bytes, more than the %d that a socket's may have",
			endpoint, len(path), maxSocketPath)
	}
	return path, nil
}
