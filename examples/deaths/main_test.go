package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// deaths prints how a container ended, with the reason. It returns when its context ends.
func TestDeaths(t *testing.T) {
	server, err := criserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	sandbox := server.RunPod(criserver.PodConfig{Namespace: "shop", Name: "cart-0"})
	cart, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: "cart"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- deaths(ctx, server.Endpoint(), in)
		_ = in.Close()
	}()
	for server.Calls("ContainerStatus") == 0 { // until the program has seen the container run
		time.Sleep(time.Millisecond)
	}
	printed := make(chan struct{})
	var dying sync.WaitGroup
	dying.Go(func() { // again and again, because the program prints no death from before its call of Handle
		for {
			if err := server.ExitContainer(cart, 137, "OOMKilled"); err != nil {
				t.Error(err)
			}
			select {
			case <-printed:
				return
			case <-time.After(100 * time.Millisecond):
			}
			var err error
			if cart, err = server.RestartContainer(cart); err != nil {
				t.Error(err)
			}
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	close(printed)
	dying.Wait()
	if err != nil || !strings.HasPrefix(line, "shop/cart-0 cart (") ||
		!strings.HasSuffix(line, "…) ContainerEnded exit 137 OOMKilled\n") {
		t.Errorf("%q, %v", line, err)
	}
	cancel()
	_ = out.Close() // later output is not read
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// If there is no runtime at the socket, the error names the socket.
func TestNoRuntime(t *testing.T) {
	err := deaths(t.Context(), "/nowhere.sock", io.Discard)
	if err == nil || !strings.Contains(err.Error(), "/nowhere.sock") {
		t.Error(err)
	}
}
