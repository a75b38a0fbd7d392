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

// patience is how long a test waits for an expected result before it fails.
const patience = 30 * time.Second

// run starts a process. The process ends with the test, or at the latest with the test binary. If
// stdout is nil, the log also contains the process's stdout.
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

// answers waits until a server answers a GET with status 200.
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

// eventually calls the function missing until it returns "". After the time within, the test fails
// with the last text that missing returned.
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
