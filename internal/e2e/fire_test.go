package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// fire injects faults into a runtime while containers start and end on it.
type fire struct {
	daemon *testnode.Daemon
	// crashes counts how often the runtime was killed or terminated.
	crashes atomic.Int64

	mu    sync.Mutex
	done  map[string]int // how often each fault was injected, for the log
	mutes []*mute
}

func newFire(d *testnode.Daemon) *fire {
	return &fire{daemon: d, done: make(map[string]int)}
}

// burn injects every fault at least once, in random order, and continues until the channel enough
// is closed. When burn returns, the runtime is serving.
func (f *fire) burn(ctx context.Context, enough <-chan struct{}) (err error) {
	defer func() {
		err = errors.Join(err, f.daemon.Restart(ctx))
		for _, m := range f.mutes {
			m.close()
		}
		f.mutes = nil
	}()
	type fault struct {
		name string
		do   func(context.Context) error
	}
	faults := []fault{
		{"frozen", f.freeze},
		{"killed", func(ctx context.Context) error { return f.restart(ctx, f.daemon.Kill) }},
		{"restarted", func(ctx context.Context) error { return f.restart(ctx, f.daemon.Terminate) }},
		{"killed twice", f.killTwice},
	}
	if f.daemon.Runtime().TakesSocket {
		faults = append(faults, fault{"socket replaced", f.replaceSocket})
	}
	for first := true; ; first = false {
		for _, i := range rand.Perm(len(faults)) {
			select {
			case <-enough:
				if !first {
					return nil
				}
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(between(time.Second, 5*time.Second)):
			}
			if err := faults[i].do(ctx); err != nil {
				return fmt.Errorf("the runtime, %s: %w", faults[i].name, err)
			}
			f.mu.Lock()
			f.done[faults[i].name]++
			f.mu.Unlock()
		}
	}
}

func (f *fire) freeze(ctx context.Context) error {
	if err := f.daemon.Freeze(); err != nil {
		return err
	}
	pause(ctx, between(500*time.Millisecond, 4*time.Second))
	return f.daemon.Thaw()
}

func (f *fire) restart(ctx context.Context, end func() error) error {
	if err := f.end(end); err != nil {
		return err
	}
	pause(ctx, between(0, 2*time.Second))
	return f.daemon.Restart(ctx)
}

func (f *fire) end(end func() error) error {
	f.crashes.Add(1)
	return end()
}

// killTwice kills the runtime, starts it, and kills it again during its recovery.
func (f *fire) killTwice(ctx context.Context) error {
	if err := f.end(f.daemon.Kill); err != nil {
		return err
	}
	if err := f.daemon.Launch(); err != nil {
		return err
	}
	pause(ctx, between(20*time.Millisecond, 400*time.Millisecond))
	return f.restart(ctx, f.daemon.Kill)
}

// replaceSocket kills the runtime and starts a mute listener at its socket. Then the restarted
// runtime replaces the socket. Clients of the mute listener stay connected to it.
func (f *fire) replaceSocket(ctx context.Context) error {
	if err := f.end(f.daemon.Kill); err != nil {
		return err
	}
	m, err := listenMute(f.daemon.Socket())
	if err != nil {
		return err
	}
	f.mutes = append(f.mutes, m)
	pause(ctx, between(time.Second, 3*time.Second))
	return f.daemon.Restart(ctx)
}

// mute is a listener that accepts connections and never answers.
type mute struct {
	listener net.Listener
	accepted sync.WaitGroup
}

func listenMute(path string) (*mute, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Do not delete the path when this listener is closed. At that time, the runtime's new socket
	// is there.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	m := &mute{listener: l}
	m.accepted.Go(func() {
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			c.Close()
		}
	})
	return m, nil
}

func (m *mute) close() {
	m.listener.Close()
	m.accepted.Wait()
}

func between(a, b time.Duration) time.Duration { return a + rand.N(b-a) }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
