package ends_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/ends"
	"github.com/kubepleg/pleg/plegtest"
)

// TestMain puts the folders of the tests into memory if it can: each end is written, and a disk takes
// milliseconds for that.
func TestMain(m *testing.M) {
	if endpoint := os.Getenv(agentVariable); endpoint != "" {
		fmt.Fprintln(os.Stderr, runAgent(context.Background(), endpoint))
		os.Exit(1)
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		_ = os.Setenv("TMPDIR", "/dev/shm")
	}
	os.Exit(m.Run())
}

// world is a runtime, the folder of an agent, and the ends that the agents on it have reported.
type world struct {
	t       *testing.T
	runtime *plegtest.Runtime
	dir     string

	mu      sync.Mutex // guards the fields below
	reports []string
	// answer returns what the function for ends returns; nil acknowledges all.
	answer func(context.Context, ends.End) error
}

// inBubble runs a test in a bubble, with a pod "cart-0" that has a running container "cart".
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, runtime: plegtest.NewRuntime(), dir: dir}
		w.runtime.SetPod(plegtest.NewPod("cart-0", plegtest.Running("cart")))
		test(w)
	})
}

// agent starts an agent. The returned function stops it.
func (w *world) agent() (stop func()) {
	return w.agentOn(w.dir, func(ctx context.Context, e ends.End) error {
		w.mu.Lock()
		w.reports = append(w.reports, strings.TrimPrefix(e.String(), "default/"))
		answer := w.answer
		w.mu.Unlock()
		if answer != nil {
			return answer(ctx, e)
		}
		return nil
	})
}

// answers sets what the function for ends returns from now on.
func (w *world) answers(answer func(context.Context, ends.End) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

// taken returns the reports since the last call.
func (w *world) taken() (reports []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	reports, w.reports = w.reports, nil
	return reports
}

func (w *world) agentOn(dir string, report func(context.Context, ends.End) error) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ctx = klog.NewContext(ctx, logr.Discard())
	generator := pleg.New(w.runtime, pleg.WithLogger(logr.Discard()))
	generator.Start(ctx)
	ended := make(chan error)
	go func() { ended <- ends.Follow(ctx, generator, dir, report) }()
	w.wait(time.Second)
	return func() {
		w.t.Helper()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
		generator.Stop()
	}
}

// wait waits in the bubble's time.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// forget makes the runtime forget how the container of a pod ended.
func (w *world) forget(uid types.UID) {
	w.t.Helper()
	status, err := w.runtime.GetPodStatus(w.t.Context(), w.runtime.Pod(uid))
	if err != nil {
		w.t.Fatal(err)
	}
	lost := *status.ContainerStatuses[0]
	lost.ExitCode, lost.Reason, lost.EndUnknown = 255, "Unknown", true
	status.ContainerStatuses = []*pleg.Status{&lost}
	w.runtime.SetStatus(uid, status)
}

// want compares the reports since the last call with the expected ones. There is no order between ends.
func (w *world) want(reports ...string) {
	w.t.Helper()
	taken := slices.Sorted(slices.Values(w.taken()))
	if slices.Sort(reports); !slices.Equal(taken, reports) {
		w.t.Errorf("reported %q, want %q", taken, reports)
	}
}

// view calls f with a transaction on a folder that no agent uses.
func view(t *testing.T, dir string, f func(*bbolt.Tx)) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, "ends.db"), 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error { f(tx); return nil }); err != nil {
		t.Error(err)
	}
}

// entries returns the number of entries in a folder, without and of containers that are gone.
func entries(t *testing.T, dir string) (n, gone int) {
	t.Helper()
	view(t, dir, func(tx *bbolt.Tx) {
		for _, bucket := range []string{"containers", "ends"} {
			_ = tx.Bucket([]byte(bucket)).ForEach(func(_, value []byte) error {
				if bytes.Contains(value, []byte(`"goneSince"`)) {
					gone++
				} else {
					n++
				}
				return nil
			})
		}
	})
	return n, gone
}

// An end is reported once, whether it comes before, during or after the agent's absence.
func TestEachEndIsReportedOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		for range 2 {
			stop := w.agent()
			w.wait(time.Minute)
			stop()
		}
		w.want("cart-0 cart (cart) exit 1 Error")

		stop := w.agent()
		w.runtime.RestartContainer("cart-0", "cart", "cart-1")
		w.wait(time.Minute)
		stop()
		w.runtime.ExitContainer("cart-0", "cart-1", 137, "OOMKilled")
		w.want()
		for range 2 {
			stop = w.agent()
			w.wait(time.Minute)
			stop()
		}
		w.want("cart-0 cart (cart-1) exit 137 OOMKilled")
	})
}

// A container that runs when the agent ends, and is gone when the next one begins, is reported once
// as gone. If the agent has seen it die, the report has the newest code and reason.
func TestGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Running("search")))
		stop := w.agent()
		w.runtime.EmitExit(pleg.ContainerExit{ContainerID: "search", ExitCode: 137})
		w.wait(time.Second)
		w.runtime.ExitContainer("search-0", "search", 137, "OOMKilled")
		w.wait(time.Second)
		stop() // before the end is settled
		w.want()
		w.runtime.SetPods()
		for range 2 {
			stop = w.agent()
			w.wait(time.Minute)
			stop()
		}
		w.want("cart-0 cart (cart) gone", "search-0 search (search) exit 137 OOMKilled")
		if n, gone := entries(w.t, w.dir); n != 0 || gone != 2 {
			w.t.Errorf("%d entries, and %d of containers that are gone", n, gone)
		}
	})
}

// A container that is listed is not gone, even if its inspection does not return for a long time. If
// it is removed meanwhile, the agent reports it.
func TestSlowInspection(t *testing.T) {
	inBubble(t, func(w *world) {
		w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Running("search")))
		w.agent()()
		defer w.runtime.Block(plegtest.GetPodStatus, plegtest.AnyPod)()
		stop := w.agent()
		w.wait(30 * time.Second)
		w.want()
		w.runtime.RemovePod("search-0")
		w.wait(30 * time.Second)
		w.want("search-0 search (search) gone")
		stop()
	})
}

// A container ended while the agent was away, and is removed during the first inspection of its pod.
// The inspection may still show the end, so the container is not reported as gone before.
func TestRemovedInTheFirstInspection(t *testing.T) {
	for _, lasts := range []time.Duration{2 * time.Second, 20 * time.Second, 90 * time.Second} {
		t.Run(lasts.String(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.agent()()
				w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Running("search"), plegtest.Running("proxy")))
				w.agent()()
				w.runtime.Inject(plegtest.Fault{Method: plegtest.GetPodStatus, PodUID: "search-0", Stale: true, Delay: lasts})
				w.runtime.ExitContainer("search-0", "search", 1, "OOMKilled")
				stop := w.agent()
				defer stop()
				w.wait(1500 * time.Millisecond)
				w.runtime.RemoveContainer("search-0", "search")
				w.wait(5 * time.Minute)
				w.want("search-0 search (search) exit 1 OOMKilled")
			})
		})
	}
}

// A container is started again under its ID while its first end is not settled. Each of its two ends is
// reported once, with its code.
func TestStartedAgainBeforeItsEndIsSettled(t *testing.T) {
	for pause := time.Second; pause < 3*time.Second; pause += 100 * time.Millisecond {
		t.Run(pause.String(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				defer w.agent()()
				w.wait(450 * time.Millisecond)
				w.runtime.ExitContainer("cart-0", "cart", 3, "Error")
				w.wait(pause)
				w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
				w.wait(time.Minute)
				w.runtime.ExitContainer("cart-0", "cart", 5, "Error")
				w.wait(time.Minute)
				w.want("cart-0 cart (cart) exit 3 Error", "cart-0 cart (cart) exit 5 Error")
			})
		})
	}
}

// If no inspection has shown for long how a container ended, the end is reported when one does, or
// when the container is gone.
func TestEndWithoutInspection(t *testing.T) {
	inBubble(t, func(w *world) {
		w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Exited("search")))
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		heal := w.runtime.Block(plegtest.GetPodStatus, "cart-0")
		defer w.runtime.Block(plegtest.GetPodStatus, "search-0")()
		stop := w.agent()
		defer stop()
		w.wait(10 * time.Minute)
		w.want()
		heal()
		w.wait(time.Minute)
		w.want("cart-0 cart (cart) exit 1 Error")
		w.runtime.RemovePod("search-0")
		w.wait(time.Minute)
		w.want("search-0 search (search) gone")
	})
}

// If the agent is killed while the function runs, or before its acknowledgement is written, the next
// agent calls the function again. The ends before are acknowledged.
func TestKilledInTheCall(t *testing.T) {
	inBubble(t, func(w *world) {
		var killed string // the folder during the last call
		w.answers(func(context.Context, ends.End) error {
			killed = clone(w.t, w.dir)
			return nil
		})
		w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Exited("search")))
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		w.wait(2 * time.Second) // so that the runtime does not change the reason any more
		w.agent()()
		reports := w.taken()
		if len(reports) != 2 {
			w.t.Fatalf("%q", reports)
		}
		w.dir = killed
		w.answers(nil)
		w.runtime.SetPods() // only the folder has the ends
		for range 2 {
			w.agent()()
		}
		w.want(reports[1])
	})
}

// If the function fails, it is called again, ever more rarely, and after a restart of the agent.
// Other ends do not wait.
func TestFunctionFails(t *testing.T) {
	inBubble(t, func(w *world) {
		const end, other = "cart-0 cart (cart) exit 1 Error", "search-0 search (search) exit 0 Completed"
		w.answers(func(_ context.Context, e ends.End) error {
			if e.Container == "cart" {
				return errors.New("refused")
			}
			return nil
		})
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		w.wait(2 * time.Second) // so that the runtime does not change the reason any more
		stop := w.agent()       // waits for a second
		w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Running("search")))
		w.wait(time.Second)
		w.runtime.ExitContainer("search-0", "search", 0, "Completed")
		w.wait(2500 * time.Millisecond)
		w.want(end, end, end, other) // end after 0, 1 and 3 s
		w.wait(time.Hour)
		if n := len(w.taken()); n < 60 || n > 70 {
			w.t.Errorf("%d attempts in an hour", n)
		}
		stop()
		w.answers(nil)
		w.agent()()
		w.want(end)
	})
}

// While the function blocks, the folder keeps up with the runtime, and other handlers have their
// events.
func TestFunctionBlocks(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answers(func(ctx context.Context, _ ends.End) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithCancel(w.t.Context())
		defer cancel()
		generator := pleg.New(w.runtime)
		generator.Start(ctx)
		other := 0
		go func() {
			_ = generator.Handle(ctx, pleg.Handler{OnContainerEnded: func(*pleg.PodLifecycleEvent) { other++ }})
		}()
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		stop := w.agent()
		for i := range 5 {
			uid := types.UID(fmt.Sprint("search-", i))
			w.runtime.SetPod(plegtest.NewPod(uid, plegtest.Running(string(uid))))
			w.wait(5 * time.Second)
			w.runtime.RemovePod(uid)
			w.wait(5 * time.Second)
		}
		w.want("cart-0 cart (cart) exit 1 Error")
		if n, _ := entries(w.t, clone(w.t, w.dir)); n != 7 { // cart-0, and six ends
			w.t.Errorf("%d entries", n)
		}
		if other != 6 {
			w.t.Errorf("another handler has had %d ends", other)
		}
		stop()
		w.answers(nil)
		w.agent()()
		if reports := w.taken(); len(reports) != 6 {
			w.t.Errorf("%q", reports)
		}
		generator.Stop()
	})
}

// clone copies a folder that an agent uses.
func clone(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "clone")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// A container that is started again with its ID has another life, with an end of its own, whether an
// agent sees the start or not.
func TestAnotherLife(t *testing.T) {
	inBubble(t, func(w *world) {
		stop := w.agent()
		for code := range 2 {
			w.runtime.ExitContainer("cart-0", "cart", code+1, "Error")
			w.wait(time.Minute)
			w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
			w.wait(time.Minute)
		}
		w.want("cart-0 cart (cart) exit 1 Error", "cart-0 cart (cart) exit 2 Error")
		stop()
		// In its absence: the known life ends, and another one begins and ends.
		w.runtime.ExitContainer("cart-0", "cart", 3, "Error")
		w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
		w.runtime.ExitContainer("cart-0", "cart", 4, "Error")
		for range 2 {
			stop = w.agent()
			w.wait(time.Minute)
			stop()
		}
		w.want("cart-0 cart (cart) gone", "cart-0 cart (cart) exit 4 Error")
		// The end is acknowledged, and another life begins.
		w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
		stop = w.agent()
		w.runtime.ExitContainer("cart-0", "cart", 5, "Error")
		w.wait(time.Minute)
		stop()
		w.want("cart-0 cart (cart) exit 5 Error")
	})
}

// All reports of an end have the same ID, even if the start of the container was unknown at first. The
// container's next end has another ID.
func TestIDs(t *testing.T) {
	inBubble(t, func(w *world) {
		heal := w.runtime.Block(plegtest.GetPodStatus, "cart-0")
		defer heal()
		var got []ends.End
		w.answers(func(_ context.Context, e ends.End) error {
			got = append(got, e)
			return errors.New("not now")
		})
		stop := w.agent()
		w.wait(5 * time.Second)
		w.runtime.EmitExit(pleg.ContainerExit{PodUID: "cart-0", ContainerID: "cart", ExitCode: 3, FinishedAt: time.Now()})
		w.wait(15 * time.Second)
		stop()
		before := len(got)
		w.runtime.ExitContainer("cart-0", "cart", 3, "Error")
		heal()
		w.answers(func(_ context.Context, e ends.End) error {
			got = append(got, e)
			return nil
		})
		stop = w.agent()
		w.wait(time.Minute)
		if len(got) != before+1 || !got[0].StartedAt.IsZero() || got[before].StartedAt.IsZero() ||
			!got[0].Unconfirmed || got[before].Unconfirmed {
			t.Fatalf("%d before; %+v", before, got)
		}
		for _, e := range got {
			if e.ID == "" || e.ID != got[0].ID {
				t.Errorf("%+v", got)
			}
		}
		w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
		w.wait(time.Minute)
		w.runtime.ExitContainer("cart-0", "cart", 3, "Error")
		w.wait(time.Minute)
		stop()
		if n := len(got); n != before+2 || got[n-1].ID == got[0].ID {
			t.Errorf("%+v", got)
		}
	})
}

// If a list is wrong and shows a container as exited, the container is reported, and its real end too.
func TestListIsWrong(t *testing.T) {
	inBubble(t, func(w *world) {
		status, err := w.runtime.GetPodStatus(w.t.Context(), w.runtime.Pod("cart-0"))
		if err != nil {
			w.t.Fatal(err)
		}
		w.runtime.SetStatus("cart-0", status)
		stop := w.agent()
		w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateExited)
		w.wait(3 * time.Second)
		w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
		w.wait(time.Minute)
		w.want("cart-0 cart (cart) gone")
		ended := *status.ContainerStatuses[0]
		ended.State, ended.ExitCode, ended.Reason = pleg.ContainerStateExited, 1, "Error"
		w.runtime.SetStatus("cart-0", &pleg.PodStatus{ID: "cart-0", ContainerStatuses: []*pleg.Status{&ended}})
		w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateExited)
		w.wait(time.Minute)
		stop()
		w.want("cart-0 cart (cart) exit 1 Error")
	})
}

// keepStatus makes the pod's present status stay, with its times, when lists do not have the pod.
func (w *world) keepStatus(uid types.UID) *pleg.PodStatus {
	w.t.Helper()
	w.runtime.SetStatus(uid, nil)
	status, err := w.runtime.GetPodStatus(w.t.Context(), w.runtime.Pod(uid))
	if err != nil {
		w.t.Fatal(err)
	}
	w.runtime.SetStatus(uid, status)
	return status
}

// If lists omit containers and have them again later, an end that is acknowledged is not reported
// again. A container that lives on is reported as gone once, and its real end later. An agent may
// restart at any moment.
func TestListsOmitContainers(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts=%t", restarts), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Running("search")))
				stop := w.agent()
				next := func() {
					w.t.Helper()
					w.wait(time.Minute)
					if restarts {
						stop()
						stop = w.agent()
						w.wait(time.Minute)
					}
				}
				omit := func() {
					w.t.Helper()
					cart, search := w.runtime.Pod("cart-0"), w.runtime.Pod("search-0")
					w.runtime.SetPods()
					next()
					w.runtime.SetPods(cart, search)
					next()
				}
				w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
				w.keepStatus("cart-0")
				running := w.keepStatus("search-0").ContainerStatuses[0]
				next()
				w.want("cart-0 cart (cart) exit 1 Error")
				omit()
				w.want("search-0 search (search) gone")
				omit()
				w.want()
				ended := *running
				ended.State, ended.ExitCode, ended.Reason = pleg.ContainerStateExited, 2, "Error"
				w.runtime.SetStatus("search-0", &pleg.PodStatus{ID: "search-0", ContainerStatuses: []*pleg.Status{&ended}})
				w.runtime.SetContainer("search-0", "search", pleg.ContainerStateExited)
				next()
				w.want("search-0 search (search) exit 2 Error")
				omit()
				omit()
				w.want()
				// Another life of a container that was gone is reported.
				w.runtime.SetPods()
				next()
				w.runtime.SetStatus("cart-0", nil)
				w.runtime.SetPods(plegtest.NewPod("cart-0", plegtest.Exited("cart")))
				next()
				w.want("cart-0 cart (cart) exit 0 Completed")
				stop()
			})
		})
	}
}

// The agent ends after a death, before the runtime knows the reason. The next agent waits for it.
func TestReasonAfterRestart(t *testing.T) {
	inBubble(t, func(w *world) {
		stop := w.agent()
		w.runtime.ExitContainer("cart-0", "cart", 137, "Error")
		w.wait(500 * time.Millisecond)
		stop()
		stop = w.agent() // waits for a second
		w.runtime.ExitContainer("cart-0", "cart", 137, "OOMKilled")
		w.want()
		w.wait(3 * time.Second)
		w.want("cart-0 cart (cart) exit 137 OOMKilled")
		stop()
	})
}

// A report that is repeated, by the same agent or the next one, has what is known by then.
func TestRepeatedReports(t *testing.T) {
	const early, late = "cart-0 cart (cart) exit 137 Error", "cart-0 cart (cart) exit 137 OOMKilled"
	refuse := func(context.Context, ends.End) error { return errors.New("refused") }
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts=%t", restarts), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answers(refuse)
				stop := w.agent()
				next := func(change func()) {
					w.t.Helper()
					if w.taken(); restarts {
						stop()
						change()
						stop = w.agent()
					} else {
						change()
					}
					w.wait(5 * time.Minute)
				}
				always := func(want string) {
					w.t.Helper()
					reports := w.taken()
					if restarts && reports[0] != want || reports[len(reports)-1] != want {
						w.t.Errorf("reported %q, want %q", reports, want)
					}
				}
				running := w.keepStatus("cart-0")
				exit := pleg.ContainerExit{ContainerID: "cart", ExitCode: 137, FinishedAt: time.Now()}
				w.runtime.EmitExit(exit)
				w.wait(time.Minute)
				always(early)
				ended := *running.ContainerStatuses[0]
				ended.State, ended.ExitCode, ended.Reason = pleg.ContainerStateExited, 137, "OOMKilled"
				ended.FinishedAt = exit.FinishedAt
				next(func() {
					w.runtime.SetStatus("cart-0", &pleg.PodStatus{ID: "cart-0", ContainerStatuses: []*pleg.Status{&ended}})
					w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateExited)
				})
				always(late)
				next(func() { // less is known
					w.runtime.SetStatus("cart-0", running)
					w.runtime.SetContainer("cart-0", "cart", pleg.ContainerStateRunning)
				})
				w.runtime.EmitExit(exit)
				w.wait(time.Minute)
				always(late)
				w.runtime.SetPods()
				w.wait(time.Minute)
				always(late)
				w.answers(nil)
				w.wait(2 * time.Minute)
				w.want(late)
				stop()
			})
		})
	}
}

// A repeated report is confirmed once the runtime's own status shows the end, even if the runtime does
// not know the code.
func TestConfirmedWhileOpen(t *testing.T) {
	for name, unknown := range map[string]bool{"known": false, "unknown": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var last ends.End
				w.answers(func(_ context.Context, e ends.End) error {
					last = e
					return errors.New("refused")
				})
				stop := w.agent()
				w.runtime.EmitExit(pleg.ContainerExit{ContainerID: "cart", ExitCode: 137, FinishedAt: time.Now()})
				w.wait(time.Minute)
				if !last.Unconfirmed {
					w.t.Errorf("%+v", last)
				}
				w.runtime.ExitContainer("cart-0", "cart", 137, "Error")
				if unknown {
					w.forget("cart-0")
				}
				w.wait(3 * time.Minute)
				if stop(); last.Unconfirmed || last.String() != "default/cart-0 cart (cart) exit 137 Error" {
					w.t.Errorf("%+v", last)
				}
			})
		})
	}
}

// If the runtime does not answer the next agent, a report is repeated as it was.
func TestRepeatedWithoutRuntime(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answers(func(context.Context, ends.End) error { return errors.New("refused") })
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		stop := w.agent()
		w.wait(5 * time.Second)
		stop()
		w.taken()
		w.answers(nil)
		defer w.runtime.Block(plegtest.GetPods, plegtest.AnyPod)()
		stop = w.agent()
		w.wait(5 * time.Second)
		w.want("cart-0 cart (cart) exit 1 Error")
		stop()
	})
}

// If an end is acknowledged, and the runtime of the next agent still shows the container running, it
// is the same end when the runtime shows it at last.
func TestRuntimeIsBehind(t *testing.T) {
	inBubble(t, func(w *world) {
		stop := w.agent()
		w.runtime.EmitExit(pleg.ContainerExit{ContainerID: "cart", ExitCode: 7, FinishedAt: time.Now()})
		w.wait(time.Minute)
		w.want("cart-0 cart (cart) exit 7 Error")
		stop()
		stop = w.agent()
		w.wait(time.Minute)
		w.runtime.ExitContainer("cart-0", "cart", 7, "Error")
		w.wait(time.Minute)
		stop()
		w.want()
	})
}

// An end that the runtime does not know has no code. A code that an earlier agent knew is kept.
func TestUnknownEnds(t *testing.T) {
	inBubble(t, func(w *world) {
		w.runtime.SetPod(plegtest.NewPod("search-0", plegtest.Running("search")))
		stop := w.agent()
		w.runtime.ExitContainer("search-0", "search", 3, "Error")
		w.wait(time.Second)
		stop()
		w.runtime.ExitContainer("cart-0", "cart", 1, "Error")
		w.forget("cart-0")
		w.forget("search-0")
		var all []ends.End
		w.answers(func(_ context.Context, e ends.End) error {
			all = append(all, e)
			return nil
		})
		stop = w.agent()
		w.wait(time.Minute)
		stop()
		w.want("cart-0 cart (cart) exit unknown", "search-0 search (search) exit 3 Error")
		for _, e := range all {
			if e.Known != (e.Container == "search") || !e.Known && e.ExitCode != -1 || e.Gone || e.StartedAt.IsZero() ||
				e.Known == e.FinishedAt.IsZero() || e.PodUID != types.UID(e.Pod) || e.Namespace != "default" {
				w.t.Errorf("%+v", e)
			}
		}
	})
}

// When 10,000 containers have come and gone, the folder is as small as after 6000. It has the newest
// 5000 of them, and an hour later none.
func TestFolderIsBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		stop := w.agent()
		var bound int64
		for i := range 200 {
			pod := plegtest.NewPod("many")
			for k := range 100 {
				pod.Containers = append(pod.Containers, plegtest.Running(fmt.Sprint("c", i, "-", k)))
			}
			w.runtime.SetPod(pod)
			w.wait(5 * time.Second)
			w.runtime.RemovePod("many")
			w.wait(5 * time.Second)
			info, err := os.Stat(filepath.Join(w.dir, "ends.db"))
			if err != nil {
				w.t.Fatal(err)
			}
			// The file doubles when its free pages do not suffice, which depends on how changes are batched.
			if i < 120 {
				bound = info.Size()
			}
			if info.Size() > 4<<20 || i >= 120 && info.Size() > bound {
				w.t.Fatalf("%d bytes after %d containers, %d after 12,000", info.Size(), 100*(i+1), bound)
			}
		}
		if n, gone := entries(w.t, clone(w.t, w.dir)); n != 1 || gone != 5000 || len(w.taken()) != 20_000 {
			w.t.Errorf("%d entries, and %d of containers that are gone", n, gone)
		}
		w.wait(time.Hour)
		stop()
		if n, gone := entries(w.t, w.dir); n != 1 || gone != 0 {
			w.t.Errorf("%d entries, and %d of containers that are gone, an hour later", n, gone)
		}
	})
}

// A second agent on a folder has an error that names the folder.
func TestTwoAgentsOnAFolder(t *testing.T) {
	inBubble(t, func(w *world) {
		stop := w.agent()
		defer stop()
		err := ends.Follow(w.t.Context(), pleg.New(w.runtime), w.dir, nil)
		if err == nil || err.Error() != "opening the folder of ends "+w.dir+": another program uses it" {
			w.t.Error(err)
		}
	})
}

// A folder that cannot be opened is an error that names it, and so is a file with damage, wherever it is.
func TestFolderCannotBeOpened(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answers(func(context.Context, ends.End) error { return errors.New("refused") })
		for i := range 100 { // several pages
			uid := types.UID(fmt.Sprint("pod-", i))
			w.runtime.SetPod(plegtest.NewPod(uid, plegtest.Exited(string(uid))))
		}
		w.agent()()
		path := filepath.Join(w.dir, "ends.db")
		whole, err := os.ReadFile(path)
		if err != nil {
			w.t.Fatal(err)
		}
		fails := func(what string, file []byte) bool {
			err := errors.Join(os.Remove(path), os.WriteFile(path, file, 0o600))
			if err != nil {
				w.t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(w.t.Context())
			cancel()
			err = ends.Follow(ctx, pleg.New(w.runtime), w.dir, nil)
			if errors.Is(err, context.Canceled) {
				return false
			}
			if !strings.HasPrefix(err.Error(), "opening the folder of ends "+w.dir+": ends.db is damaged: ") {
				w.t.Errorf("%s: %v", what, err)
			}
			return true
		}
		damaged, size, used := 0, os.Getpagesize(), 0
		view(w.t, w.dir, func(tx *bbolt.Tx) { used = int(tx.Size()) })
		for at := 0; at < len(whole); at += size {
			if fails(fmt.Sprintf("%d bytes", at+1), whole[:at+1]) != (at < used) {
				w.t.Errorf("a file of %d bytes, of which %d are used", at+1, used)
			}
			torn := slices.Clone(whole)
			for i := range size {
				torn[at+i] = 0xaa
			}
			if fails(fmt.Sprintf("page %d", at/size), torn) {
				damaged++
			}
		}
		if damaged < 5 {
			w.t.Errorf("%d damaged pages of %d bytes", damaged, len(whole))
		}
		for dir, says := range map[string]string{path: "not a directory", "/proc/no": "no such file"} {
			if err := ends.Follow(w.t.Context(), pleg.New(w.runtime), dir, nil); err == nil ||
				!strings.Contains(err.Error(), "opening the folder of ends "+dir) || !strings.Contains(err.Error(), says) {
				w.t.Errorf("%s: %v", dir, err)
			}
		}
	})
}

// At Stop, Follow returns nil like Handle.
func TestStop(t *testing.T) {
	inBubble(t, func(w *world) {
		generator := pleg.New(w.runtime)
		generator.Start(w.t.Context())
		ended := make(chan error)
		go func() {
			ended <- ends.Follow(w.t.Context(), generator, w.dir, func(context.Context, ends.End) error { return nil })
		}()
		w.wait(time.Second)
		generator.Stop()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
}
