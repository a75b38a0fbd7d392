package mixin_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must come at once.
const patience = 30 * time.Second

// logBuffer keeps what a process writes.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// run starts a process that ends with the test, at the latest with this process.
func run(t *testing.T, stdout io.Writer, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	log := &logBuffer{}
	cmd.Stdout, cmd.Stderr = stdout, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
			if err != nil {
				t.Errorf("%s %q: %v", name, args, err)
			}
		case <-time.After(patience):
			t.Errorf("%s %q does not end", name, args)
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			text := log.String()
			t.Logf("the log of %s %q ends:\n%s", name, args, text[max(0, len(text)-4000):])
		}
	})
}

// freeAddress returns an address on loopback that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// answers waits until a server answers a GET with 200.
func answers(t *testing.T, url string) {
	t.Helper()
	client := http.Client{Timeout: time.Second}
	eventually(t, patience, func() string {
		resp, err := client.Get(url)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Sprint(url, " answers ", resp.Status)
		}
		return ""
	})
}

// eventually waits until a condition holds, which says what is missing.
func eventually(t *testing.T, within time.Duration, missing func() string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		what := missing()
		if what == "" {
			return
		}
		if time.Since(began) > within {
			t.Fatalf("after %v: %s", within, what)
		}
	}
}
