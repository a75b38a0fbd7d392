package proctest

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	ended := Start(t, exec.Command("sh", "-c", "echo said; echo complained >&2; exit 3"))
	if code := ended.ExitCode(); code != 3 || ended.Wait() == nil {
		t.Errorf("it has ended with %d, %v", code, ended.Wait())
	}
	if got := ended.Log.String(); got != "said\ncomplained\n" || ended.Log.Tail(5) != "ined\n" {
		t.Errorf("its log: %q", got)
	}
	if err := ended.End(syscall.SIGTERM, time.Minute); err != nil {
		t.Error("what has ended can be ended:", err)
	}
	running := Start(t, exec.Command("sleep", "1000"))
	if err := running.End(syscall.SIGTERM, time.Minute); err != nil || running.ExitCode() != -1 {
		t.Errorf("it does not obey: %v, %d", err, running.ExitCode())
	}
}

func TestProcessIsKilled(t *testing.T) {
	// The shell ignores SIGTERM. Its child process "sleep" holds the log open.
	p := Start(t, exec.Command("sh", "-c", "trap '' TERM; sleep 1000 & echo ready; while :; do wait; done"))
	for deadline := time.Now().Add(time.Minute); p.Log.String() == "" && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := p.End(syscall.SIGTERM, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Error("it was killed, and End says:", err)
	}
}
