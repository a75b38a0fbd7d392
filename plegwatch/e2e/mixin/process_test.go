package mixin_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/test/proctest"
)

// patience is how long a test waits for something that must come soon.
const patience = 30 * time.Second

// run starts a process that ends with the test, at the latest with this process. If stdout is nil,
// the log has the process's stdout too.
func run(t *testing.T, stdout io.Writer, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdout = stdout
	p := proctest.Start(t, cmd)
	t.Cleanup(func() {
		if err := errors.Join(p.End(syscall.SIGTERM, patience), p.Wait()); err != nil {
			t.Errorf("%s: %v", cmd, err)
		}
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", cmd, p.Log.Tail(4000))
		}
	})
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

// eventually waits until missing returns "", and fails with what it returned last.
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
