package cri

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kubepleg/pleg/internal/healthreport"
)

// The delay between attempts to reach a runtime that is down. gRPC varies each delay by a fifth.
// The kubelet's maximum is 3 s. With this maximum, the next attempt comes within 0.6 s of the
// socket's appearance. With a relist every second, the next list begins within 1 s of that attempt.
// So the first list begins within 2 s of the socket's appearance. An attempt on a missing socket is
// one system call.
const (
	minDialDelay = 100 * time.Millisecond
	maxDialDelay = 500 * time.Millisecond
)

// maxSocketPath is the length of the longest path that a socket can have on Linux.
const maxSocketPath = 107

// Dial returns a Runtime for an endpoint at once. It makes no call, so the runtime need not be
// there yet. An endpoint is "unix:///path", "unix:/path" or an absolute path. Dial connects in the
// background, trying every 100 ms to 500 ms until it succeeds or Close is called. Once connected,
// the Runtime behaves like a Runtime from Connect.
//
// Before the first connection, calls fail with the code Unavailable. The error names the endpoint
// and the reason why the last attempt failed. The health of a generator reports the same. A call
// waits only for the first attempt, and for the first attempt after a connection has broken. Such
// an attempt takes a moment, or 5 s if the socket accepts connections and does not answer. With
// [grpc.WaitForReady] as a default call option in WithDialOptions, calls wait until their context
// ends.
//
// If the endpoint is empty, each attempt tries the default sockets as Connect does. The first
// socket at which a runtime answers is the endpoint from then on.
//
// Dial fails only if no runtime can ever be at the endpoint. Then its scheme is not unix, or its
// path is relative, too long for a socket, or ends in a slash. It does not fail if the path does
// not exist, or is a file or a directory, because a socket may be there later.
func Dial(endpoint string, opts ...Option) (*Runtime, error) {
	d := new(dialer)
	if endpoint == "" {
		o := newOptions(opts)
		d.search = func(ctx context.Context) (string, error) {
			found, err := connectFirst(ctx, o.defaultEndpoints(), opts)
			if err != nil {
				return "", err
			}
			return *found.dialer.path.Load(), found.Close()
		}
	} else {
		path, err := socketPath(endpoint)
		if err != nil {
			return nil, fmt.Errorf("cri: dial: %w", err)
		}
		d = newDialer(path)
	}
	r, err := newDialed(d, DefaultConnectTimeout, opts)
	if err != nil {
		return nil, fmt.Errorf("cri: dial: endpoint %q: %w", endpoint, err)
	}
	r.conn.Connect() // in goroutines of the connection
	return r, nil
}

// newDialed returns a Runtime that owns its connection. The connection has not tried to connect
// yet. Each attempt to connect ends after the given time.
func newDialed(d *dialer, attempt time.Duration, opts []Option) (*Runtime, error) {
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
		grpc.WithContextDialer(d.dial),
	}, newOptions(opts).dialOptions...)
	target := "passthrough:///localhost"
	if path := d.path.Load(); path != nil {
		target = (&url.URL{Scheme: "unix", Path: *path}).String()
	}
	conn, err := grpc.NewClient(target, dialOptions...)
	if err != nil {
		return nil, err
	}
	r := NewRuntime(conn, opts...)
	r.conn, r.dialer = conn, d
	return r, nil
}

// dialer makes the connections of a Runtime.
type dialer struct {
	path   atomic.Pointer[string]                    // the path of the socket; nil until it is found
	search func(ctx context.Context) (string, error) // finds the path; nil if the path was given
	dials  atomic.Int64                              // number of attempts to connect

	mu    sync.Mutex
	last  time.Time     // when the last attempt began; guarded by mu
	delay time.Duration // between the last attempt and the next; guarded by mu
}

func newDialer(path string) *dialer {
	d := new(dialer)
	d.path.Store(&path)
	return d
}

// dial makes one attempt to connect.
func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	if err := d.pause(ctx); err != nil {
		return nil, err
	}
	d.dials.Add(1)
	path := d.path.Load()
	if path == nil {
		found, err := d.search(ctx)
		if err != nil {
			return nil, err
		}
		path = &found
		d.path.Store(path)
	}
	return new(net.Dialer).DialContext(ctx, "unix", *path)
}

// pause waits until it is time for an attempt. gRPC delays an attempt only after a failed attempt.
// If the runtime accepts connections and ends them at once, gRPC would try hundreds of times a
// second.
func (d *dialer) pause(ctx context.Context) error {
	d.mu.Lock()
	now := wallClock.Now()
	if now.Sub(d.last) > 2*maxDialDelay {
		d.delay = 0 // the last connection did not end at once
	}
	d.last = d.last.Add(d.delay)
	if d.last.Before(now) {
		d.last = now
	}
	wait := d.last.Sub(now)
	d.delay = min(max(2*d.delay, minDialDelay), maxDialDelay)
	d.mu.Unlock()
	select {
	case <-wallClock.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// explain adds to err that the runtime has not answered yet, if it has never answered a call and
// there is no connection. A user who starts the agent before the runtime then learns that the agent
// is still waiting.
func (r *Runtime) explain(err error) error {
	if r.conn == nil || r.version.Load() != nil || status.Code(err) != codes.Unavailable {
		return err
	}
	if strings.Contains(err.Error(), " preface") {
		return fmt.Errorf("%s: %w", healthreport.Accepts, err)
	}
	return fmt.Errorf("the runtime has not answered yet: %w", err)
}

// socketPath returns the path of an endpoint's socket. It fails if no socket can be there.
func socketPath(endpoint string) (string, error) {
	path, hasScheme := strings.CutPrefix(endpoint, "unix://")
	if !hasScheme {
		path, hasScheme = strings.CutPrefix(endpoint, "unix:") // gRPC accepts this form too
	}
	switch {
	case !hasScheme && strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("endpoint %s: only unix sockets are supported: use unix:///path or an absolute path",
			endpoint)
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("endpoint %s: the socket path is not absolute: use unix:///path or /path",
			endpoint)
	case strings.HasSuffix(path, "/"):
		return "", fmt.Errorf("endpoint %s: the socket path ends in a slash", endpoint)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("endpoint %q: the socket path has a zero byte", endpoint)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("endpoint %s: the socket path has %d bytes; the limit is %d",
			endpoint, len(path), maxSocketPath)
	}
	return path, nil
}
