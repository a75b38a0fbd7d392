package cri_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

func TestConnect(t *testing.T) {
	s, err := criserver.Start(criserver.WithVersion("containerd", "2.4.2"))
	must(t, err)
	defer s.Stop()
	path := strings.TrimPrefix(s.Endpoint(), "unix://")
	for _, endpoint := range []string{s.Endpoint(), path, "unix:" + path} {
		r, err := cri.Connect(t.Context(), endpoint)
		must(t, err)
		if got, want := r.DescribeRuntime(), "containerd 2.4.2 at "+s.Endpoint(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		must(t, r.Close())
		must(t, r.Close())
		if _, err := r.GetPods(t.Context(), true); err == nil {
			t.Error("a list after Close")
		}
	}
}

func TestConnectFails(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.sock")
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	silent := silentSocket(t, filepath.Join(dir, "silent.sock"))
	frozen, err := criserver.Start()
	must(t, err)
	defer frozen.Stop()
	frozen.Block("Version", "")
	broken, err := criserver.Start()
	must(t, err)
	defer broken.Stop()
	broken.Fail("Version", "", status.Error(codes.Internal, "not today"))

	for _, test := range []struct {
		name, endpoint string
		want           []string
	}{
		{"missing", missing, []string{missing, "no such file"}},
		{"no socket", "unix://" + file, []string{file, "not a socket"}},
		{"silent", silent, []string{silent, "Version", "no answer within"}},
		{"frozen", frozen.Endpoint(), []string{frozen.Endpoint(), "Version", "no answer within"}},
		{"broken", broken.Endpoint(), []string{broken.Endpoint(), "Version", "not today"}},
		{"tcp", "tcp://127.0.0.1:1", []string{"tcp://127.0.0.1:1", "only unix sockets"}},
		{"relative", "run/containerd.sock", []string{"run/containerd.sock", "not absolute"}},
		{"relative URL", "unix://containerd.sock", []string{"unix://containerd.sock", "not absolute"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			timeout := 10 * time.Second
			if slices.Contains(test.want, "no answer within") {
				timeout = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			r, err := cri.Connect(ctx, test.endpoint)
			if err == nil {
				_ = r.Close()
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

// silentSocket returns the endpoint of a socket that accepts connections and never answers.
func silentSocket(t *testing.T, path string) (endpoint string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "unix://" + path
}

// Without an endpoint, Connect tries the default sockets in turn. A silent socket does not use up
// the time for the sockets after it.
func TestConnectFindsTheRuntime(t *testing.T) {
	dir := t.TempDir()
	silent := silentSocket(t, filepath.Join(dir, "silent.sock"))
	missing := "unix://" + filepath.Join(dir, "missing.sock")
	s, err := criserver.Start()
	must(t, err)
	defer s.Stop()

	defer cri.SetUsualEndpoints(missing, silent, s.Endpoint())()
	err = errors.New("not tried")
	for timeout := time.Second; err != nil && timeout < time.Minute; timeout *= 2 { // the server may be slow too
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		var r *cri.Runtime
		if r, err = cri.Connect(ctx, ""); err == nil {
			must(t, r.Close())
		}
		cancel()
	}
	must(t, err)

	defer cri.SetUsualEndpoints(missing, silent)()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = cri.Connect(ctx, "")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"default sockets", missing, "no such file", silent, "no answer within"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

// Sockets that do not exist take no share of the time from a slow runtime.
func TestConnectWaitsForTheOnlySocket(t *testing.T) {
	dir := t.TempDir()
	missing := "unix://" + filepath.Join(dir, "missing.sock")
	defer cri.SetUsualEndpoints(silentSocket(t, filepath.Join(dir, "silent.sock")), missing, missing, missing)()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := cri.Connect(ctx, ""); err == nil || time.Since(began) < 700*time.Millisecond {
		t.Errorf("%v after %v, want an error after the whole second", err, time.Since(began))
	}
}

// If the runtime ends each connection without an answer, the error says that it accepts connections.
func TestRuntimeThatOnlyAccepts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	r, err := cri.Dial(path)
	must(t, err)
	defer r.Close()
	if _, err := r.GetPods(t.Context(), true); err == nil ||
		!strings.Contains(err.Error(), "the runtime accepts connections, and has not answered yet") {
		t.Error(err)
	}
}

// After a list that has timed out, Close ends its search. Otherwise the search would go on for seconds.
func TestCloseEndsTheSearch(t *testing.T) {
	searches := func() int {
		stacks := make([]byte, 4<<20)
		return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("cri.(*Runtime).run("))
	}
	s, err := criserver.Start()
	must(t, err)
	defer s.Stop()
	r, err := cri.Connect(t.Context(), s.Endpoint())
	must(t, err)
	s.Block("ListPodSandbox", "")
	s.Block("StreamPodSandboxes", "")
	before := searches()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.GetPods(ctx, true); err == nil {
		t.Error("a list of a blocked runtime")
	}
	must(t, r.Close())
	if after := searches(); after > before {
		t.Errorf("%d searches go on", after-before)
	}
}

func TestReconnect(t *testing.T) {
	s, r := serverAndRuntime(t)
	s.RunPod(criserver.PodConfig{})
	getPods(t, r)
	s.Down()
	if _, err := r.GetPods(t.Context(), true); status.Code(err) != codes.Unavailable {
		t.Errorf("while it is away: %v", err)
	}
	must(t, s.Up())
	waitFor(t, func() bool {
		pods, err := r.GetPods(t.Context(), true)
		return err == nil && len(pods) == 1
	})
}
