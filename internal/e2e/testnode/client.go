package testnode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Client is a CRI client for the tests' own calls. Most of these calls change something. The client
// itself is not tested.
type Client struct {
	runtimeapi.RuntimeServiceClient
	conn   *grpc.ClientConn
	parent string // the parent cgroup of the pods
}

// Client connects to the daemon. After a restart of the daemon, the client reconnects.
func (d *Daemon) Client() (*Client, error) {
	conn, err := grpc.NewClient(d.Endpoint(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", d.runtime.Name, err)
	}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		conn:                 conn,
		parent:               cgroupParent(d.dir),
	}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// WaitReady returns when the runtime answers or ctx ends.
func (c *Client) WaitReady(ctx context.Context) error {
	return untilDone(ctx, func() error {
		_, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{}, grpc.WaitForReady(true))
		return err
	})
}

// untilDone calls f until f succeeds or ctx ends. If ctx ends, the error contains the last error that f
// returned before.
func untilDone(ctx context.Context, f func() error) error {
	var last error
	for {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), cmp.Or(last, err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Pid returns the PID of a running container, in the host's PID namespace.
func (c *Client) Pid(ctx context.Context, containerID string) (int, error) {
	r, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: containerID, Verbose: true})
	if err != nil {
		return 0, fmt.Errorf("asking for the process of container %s: %w", containerID, err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		return 0, fmt.Errorf("reading the process of container %s: %w", containerID, err)
	}
	if info.Pid == 0 {
		return 0, fmt.Errorf("container %s has no process", containerID)
	}
	return info.Pid, nil
}

// Shim returns the PID of the process that watches a running container and reaps it: containerd's
// shim or CRI-O's conmon.
func (c *Client) Shim(ctx context.Context, containerID string) (int, error) {
	pid, err := c.Pid(ctx, containerID)
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("looking for the shim of container %s: %w", containerID, err)
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	var state string
	var parent int
	if _, err := fmt.Sscan(fields, &state, &parent); err != nil {
		return 0, fmt.Errorf("looking for the shim of container %s: %w", containerID, err)
	}
	return parent, nil
}

// gone returns err. If err means that the object to remove does not exist, gone returns nil.
func gone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
