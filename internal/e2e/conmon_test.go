package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// If conmon is killed before its container ends, no exit file is written. After a restart, CRI-O
// then shows exit code -1, and the library reports the end without an exit code. If the exit file
// appears later, a generator that reads exit files then reports the code.
func TestConmonIsKilled(t *testing.T) {
	n := newBareNode(t)
	if n.daemon.ExitsDir() == "" {
		t.Skip("only CRI-O has conmon")
	}
	before, without := n.newWatcher(true), n.newWatcher(false)
	pod := n.runPod("conmon")
	codes := map[string]int{}
	for _, code := range []int{0, 7} {
		id := n.run(pod, testnode.Container{Name: fmt.Sprint("c", code), Command: testnode.ExitOnSignal(code)})
		codes[id] = code
		before.next(pleg.ContainerStarted, id)
		pid, err := n.client.Pid(n.ctx, id)
		n.must(err)
		conmon, err := n.client.Shim(n.ctx, id)
		n.must(err)
		n.must(unix.Kill(conmon, unix.SIGKILL))
		n.signalPid(pid, unix.SIGUSR1)
	}
	n.must(n.daemon.Kill())
	n.must(n.daemon.Restart(n.ctx))
	after := n.newWatcher(true)
	for id, code := range codes {
		if s := n.awaitExit(id); s.ExitCode != -1 || s.FinishedAt > 0 {
			t.Fatalf("CRI-O shows %d at %d", s.ExitCode, s.FinishedAt)
		}
		for _, w := range []*watcher{before, without, after} {
			w.hasEnd(pod.UID, id, code, false)
		}
	}
	for id, code := range codes {
		n.must(os.WriteFile(filepath.Join(n.daemon.ExitsDir(), id), []byte(strconv.Itoa(code)), 0o600))
		before.hasEnd(pod.UID, id, code, true)
		after.hasEnd(pod.UID, id, code, true)
	}
	for _, w := range []*watcher{before, without, after} {
		n.must(w.generator.Relist(n.ctx))
		for len(w.read) > 0 {
			e := <-w.read
			if code, _, seen := e.Exit(); seen && code != codes[e.Container.ID.ID] {
				t.Errorf("%v", e)
			}
		}
		for id, code := range codes {
			w.hasEnd(pod.UID, id, code, w != without)
		}
	}
	before.eachDiedOnce()
}

// hasEnd waits until the cache shows the end of a container. If seen is true, it waits for the exit
// code, too; if seen is false, the cache must have no exit code.
func (w *watcher) hasEnd(uid types.UID, id string, code int, seen bool) {
	w.t.Helper()
	w.eventually("the end of "+id, func() string {
		status, err := w.cache.Get(uid)
		s := status.FindContainerStatusByID(id)
		if err != nil || s == nil || s.State != pleg.ContainerStateExited || s.Unconfirmed {
			return fmt.Sprintf("%+v, %v", s, err)
		}
		got, _, ok := (&pleg.PodLifecycleEvent{Type: pleg.PodSync, Status: s}).Exit()
		if ok && (got != code || !seen) {
			w.t.Fatalf("the cache has %+v", s)
		}
		if ok != seen {
			return "the code is unknown"
		}
		return ""
	})
}
