//go:build unix

package ends_test

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kubepleg/pleg/ends"
)

// While nothing can be written, ends are reported. The next agent reports them again, unless the
// acknowledgement could be written later. The test runs in a process of its own, because its limit
// is also one for files of the testing package.
func TestFullDisk(t *testing.T) {
	const variable = "PLEG_ENDS_FULL_DISK"
	if os.Getenv(variable) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$")
		cmd.Env = append(os.Environ(), variable+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	limit := func(t *testing.T, bytes uint64) {
		var l syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
		l.Cur = min(bytes, l.Max)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
	}
	const none, all = 0, 1 << 62
	defer limit(t, all)
	const end = "cart-0 cart (cart) exit 1 Error"
	inBubble(t, func(w *world) {
		stop := w.agent()
		limit(w.t, none)
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		w.wait(time.Minute)
		w.want(end)
		stop()
		limit(w.t, all)

		stop = w.agent()
		w.wait(time.Minute)
		w.want(end)
		stop()
		w.agent()()
		w.want()

		stop = w.agent()
		w.runtime.RestartContainer("cart-0", "cart", "cart-1")
		w.wait(time.Minute)
		w.answers(func(context.Context, ends.End) error {
			limit(w.t, none)
			return nil
		})
		w.runtime.ExitContainer("cart-0", "cart-1", 2, "Error")
		w.wait(time.Minute)
		w.want("cart-0 cart (cart-1) exit 2 Error")
		limit(w.t, all)
		w.wait(10 * time.Second)
		w.dir = clone(w.t, w.dir) // as if the agent were killed now
		stop()
		w.agent()()
		w.want()
	})
}
