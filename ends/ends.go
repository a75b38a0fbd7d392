// Package ends reports each end of a container once, over restarts of the program.
//
// A program that keeps nothing does not know after a restart which ends it has reported, and never
// learns of containers that ended and were removed in between. Follow keeps in a folder which
// containers exist, and which ends are open: not acknowledged by the program.
package ends

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg"
)

const (
	// longestWait is the longest wait between two reports of an end. The first wait is a second.
	longestWait = time.Minute
	// writeAgain is the wait after a write that failed.
	writeAgain = 5 * time.Second
	// lookAgain is the wait before another look at containers without an event.
	lookAgain = 10 * time.Second
	never     = 24 * time.Hour
)

// End is how a container ended.
type End struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"podUID"`
	Container string    `json:"container"`
	// ContainerID is the runtime's ID, without a prefix such as "containerd://". If a runtime starts a
	// container again with the same ID, each life has an end of its own: ContainerID and StartedAt
	// identify it.
	ContainerID string `json:"containerID"`
	// RestartCount is the number of restarts before this container.
	RestartCount int `json:"restartCount,omitempty"`
	// StartedAt and FinishedAt are the runtime's times; zero if unknown.
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Known is true if ExitCode, Reason and Message are known. Otherwise, ExitCode is -1.
	Known    bool   `json:"known"`
	ExitCode int    `json:"exitCode"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
	// Gone is true if the container was gone, or was started again, before anyone saw its end. Known is
	// then false. If a list has lost a container that lives on, its real end is reported later, too.
	Gone bool `json:"gone,omitempty"`
}

// String returns the end as a line for logs, as in "shop/cart-0 cart (3f2a61d0c9b8) exit 137
// OOMKilled". It ends with "exit unknown" or "gone" if the exit code is not known.
func (e End) String() string {
	how := "exit unknown"
	switch {
	case e.Known:
		how = strings.TrimSpace(fmt.Sprintf("exit %d %s", e.ExitCode, e.Reason))
	case e.Gone:
		how = "gone"
	}
	return fmt.Sprintf("%s/%s %s (%.12s) %s", e.Namespace, e.Pod, e.Container, e.ContainerID, how)
}

// Follow calls report with each end of a container, until ctx ends or the generator stops. It
// returns as [pleg.GenericPLEG.Handle] does, after the last call of report.
//
// If report returns nil, the end is acknowledged, and is not reported again. This includes ends from
// before Follow, if the runtime still has the container: see FinishedAt. It also includes containers
// that an earlier Follow on the same folder knew, and that are gone. Code, reason and message are
// those of the event [pleg.ContainerEnded]. If only lists have shown the exit by then, the report
// waits for an inspection.
//
// # Errors and kills
//
// If report returns an error, the end is reported again, after a second at first and a minute at
// most. Other ends do not wait for it, so there is no order between ends. Follow logs the first error
// of each end, to the logger in ctx.
//
// The program may be killed at any moment. If it is killed in report, or before the acknowledgement is
// written, the next Follow reports that end again, and no other. If the folder cannot be written,
// Follow logs that, tries again every few seconds, and goes on with its reports. The next Follow then
// repeats the reports whose acknowledgement was never written. Of containers that were never written,
// it reports those that the runtime still has.
//
// Follow makes a folder that does not exist. If the folder cannot be written, if another Follow uses
// it, or if its file is damaged, Follow returns an error that names the folder and the cause. Without
// its file, a folder is a new one. The file has an entry for each container that the runtime lists and
// for each end that is not acknowledged. It grows with them, and does not shrink.
//
// # Concurrency
//
// report is called in the caller's goroutine, one call at a time. Its context ends when Follow is about
// to end. While report blocks, other ends wait in the folder. The generator and other handlers never
// wait.
func Follow(ctx context.Context, g *pleg.GenericPLEG, dir string, report func(context.Context, End) error) error {
	s, err := openStore(dir, klog.FromContext(ctx).WithName("ends"))
	if err != nil {
		return err
	}
	f := &follower{store: s, changed: make(chan struct{}, 1), due: make(chan struct{}, 1)}
	following, stop := context.WithCancel(ctx)
	var joined sync.WaitGroup
	defer s.close()
	defer joined.Wait()
	defer stop()
	joined.Go(func() {
		defer stop()
		err = g.Handle(following, f.handler())
	})
	joined.Go(func() { f.keepWritten(following, g) })
	for following.Err() == nil {
		f.reportDue(following, report)
		select {
		case <-f.due:
		case <-following.Done():
		}
	}
	joined.Wait()
	return err
}

// follower follows the containers of a generator. Its functions for events change only the memory, so
// the generator's other handlers do not wait for the disk.
type follower struct {
	*store
	changed chan struct{} // receives when there is something to write
	due     chan struct{} // receives when an end may be due
	looking bool          // true while containers of earlier followers may be gone; guarded by mu
}

// container is a container that the runtime lists, or that an earlier follower has listed.
type container struct {
	// End is the end of the container's present life, as far as it is known.
	End
	// Ended is true if the end is open or acknowledged.
	Ended bool `json:"ended,omitempty"`

	seen      bool // true once this follower has an event of the container
	endedHere bool // true once this follower has the ContainerEnded of the present life
}

// openEnd is an end that is not acknowledged.
type openEnd struct {
	End
	number   uint64
	failures int
	retry    *time.Timer // runs until the end is due again; nil if it is due
}

func (f *follower) handler() pleg.Handler {
	locked := func(do func(*pleg.PodLifecycleEvent)) func(*pleg.PodLifecycleEvent) {
		return func(e *pleg.PodLifecycleEvent) {
			f.mu.Lock()
			defer f.mu.Unlock()
			do(e)
			wake(f.changed)
		}
	}
	observe := locked(func(e *pleg.PodLifecycleEvent) { f.observeLocked(e) })
	ended := locked(f.endedLocked)
	return pleg.Handler{
		OnContainerCreated: observe,
		OnContainerDied:    observe, // the end counts if this program is killed before it is settled
		OnContainerStarted: locked(f.startedLocked),
		OnContainerEnded:   ended,
		OnContainerRemoved: locked(func(e *pleg.PodLifecycleEvent) { f.goneLocked(f.containers[e.Container.ID.ID]) }),
		OnPodSync: func(e *pleg.PodLifecycleEvent) {
			if e.Container != nil { // it corrects an end
				ended(e)
			}
		},
		OnSynced: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.looking = true
			wake(f.changed)
		},
	}
}

// observeLocked updates what is known of a container. An end that is open or acknowledged does not
// change any more.
func (f *follower) observeLocked(e *pleg.PodLifecycleEvent) *container {
	now, c := endOf(e), f.containers[e.Container.ID.ID]
	if c != nil && !c.StartedAt.IsZero() && !now.StartedAt.IsZero() && !c.StartedAt.Equal(now.StartedAt) {
		f.endLocked(c, true) // another life has begun
		c = nil
	}
	if c == nil {
		c = new(container)
		f.containers[now.ContainerID] = c
	}
	before := c.End
	if !c.Ended && (now.Known || !c.Known) { // the runtime may have forgotten an end that is known
		now.StartedAt = cmp.Or(now.StartedAt, c.StartedAt)
		c.End = now
	}
	if c.seen = true; c.End != before {
		f.putLocked(containersBucket, c.ContainerID, c)
	}
	return c
}

// startedLocked handles a start. A start after an end begins another life, even if the runtime shows
// the same StartedAt: the end came from a list that was wrong.
func (f *follower) startedLocked(e *pleg.PodLifecycleEvent) {
	if c := f.containers[e.Container.ID.ID]; c != nil && c.endedHere {
		f.endLocked(c, true)
		delete(f.containers, c.ContainerID)
	}
	f.observeLocked(e)
}

// endedLocked handles a ContainerEnded, and a PodSync of a container. If only lists have shown the
// exit, because no inspection has returned for long, a PodSync with the end follows the
// ContainerEnded.
func (f *follower) endedLocked(e *pleg.PodLifecycleEvent) {
	c := f.observeLocked(e)
	c.endedHere = c.endedHere || e.Type == pleg.ContainerEnded
	shown := c.Known || e.Status != nil && e.Status.State == pleg.ContainerStateExited
	if c.endedHere && (shown || e.Container.State != pleg.ContainerStateExited) {
		f.endLocked(c, !shown)
	}
}

// endLocked opens the end of a container, unless it is open or acknowledged already. gone is true if
// the runtime does not show the end.
func (f *follower) endLocked(c *container, gone bool) {
	if c.Ended {
		return
	}
	c.Ended, c.Gone = true, gone && !c.Known
	f.putLocked(containersBucket, c.ContainerID, c)
	f.newest++
	f.open = append(f.open, &openEnd{End: c.End, number: f.newest})
	f.putLocked(endsBucket, endKey(f.newest), c.End)
	wake(f.due)
}

// goneLocked forgets a container that the runtime no longer has.
func (f *follower) goneLocked(c *container) {
	if c != nil {
		f.endLocked(c, true)
		delete(f.containers, c.ContainerID)
		f.putLocked(containersBucket, c.ContainerID, nil)
	}
}

// keepWritten writes changes until ctx ends.
func (f *follower) keepWritten(ctx context.Context, g *pleg.GenericPLEG) {
	for ctx.Err() == nil {
		timer := time.NewTimer(f.write(g))
		select {
		case <-f.changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// write writes the changes. It returns when there is something to do again, if nothing changes.
func (f *follower) write(g *pleg.GenericPLEG) (again time.Duration) {
	again = never
	f.mu.Lock()
	if f.looking = f.looking && f.forgetLocked(g); f.looking {
		again = lookAgain
	}
	f.mu.Unlock()
	if f.flush() != nil {
		again = writeAgain
	}
	return again
}

// forgetLocked ends the containers of earlier followers that are gone. It returns true if a
// container is listed and has no event yet, because the inspection of its pod is slow.
func (f *follower) forgetLocked(g *pleg.GenericPLEG) (waits bool) {
	var unseen []*container
	for _, c := range f.containers {
		if !c.seen {
			unseen = append(unseen, c)
		}
	}
	if unseen == nil {
		return false
	}
	listed := make(map[string]bool)
	for _, pod := range g.Pods() {
		for _, c := range pod.Containers {
			listed[c.ID.ID] = true
		}
	}
	slices.SortFunc(unseen, func(a, b *container) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	for _, c := range unseen {
		if listed[c.ContainerID] {
			waits = true
		} else {
			f.goneLocked(c)
		}
	}
	return waits
}

// reportDue calls report with each end that is due.
func (f *follower) reportDue(ctx context.Context, report func(context.Context, End) error) {
	for o := f.firstDue(); o != nil && ctx.Err() == nil; o = f.firstDue() {
		_ = f.flush() // so that the end outlives the program; a full disk silences no report
		if err := report(ctx, o.End); err != nil {
			f.failed(ctx, o, err)
		} else {
			f.acknowledge(o)
		}
	}
}

// firstDue returns the oldest end that is due; nil if there is none.
func (f *follower) firstDue() *openEnd {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.open {
		if o.retry == nil {
			return o
		}
	}
	return nil
}

// failed makes an end due again after a wait.
func (f *follower) failed(ctx context.Context, o *openEnd, err error) {
	wait := min(time.Second<<min(o.failures, 10), longestWait)
	if o.failures == 0 && ctx.Err() == nil {
		f.logger.Error(err, "Cannot report the end of a container; will try again until it can", "end", o.End.String())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	o.failures++
	o.retry = time.AfterFunc(wait, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		o.retry = nil
		wake(f.due)
	})
}

// acknowledge returns when the acknowledgement is written, so that a kill repeats one report at most.
func (f *follower) acknowledge(o *openEnd) {
	f.mu.Lock()
	f.open = slices.DeleteFunc(f.open, func(other *openEnd) bool { return other == o })
	f.putLocked(endsBucket, endKey(o.number), nil)
	f.mu.Unlock()
	if f.flush() != nil {
		wake(f.changed) // which tries again
	}
}

// wake sends a signal. Signals that were not received yet are one.
func wake(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// endOf returns what an event shows of the end of its container.
func endOf(e *pleg.PodLifecycleEvent) End {
	end := End{
		Namespace: e.Pod.Namespace, Pod: e.Pod.Name, PodUID: e.ID, Container: e.Container.Name,
		ContainerID: e.Container.ID.ID, RestartCount: int(e.Container.Attempt), ExitCode: -1,
	}
	if e.Status != nil {
		end.RestartCount, end.StartedAt = e.Status.RestartCount, e.Status.StartedAt
	}
	if code, reason, known := e.Exit(); known {
		end.Known, end.ExitCode, end.Reason = true, code, reason
		end.Message, end.FinishedAt = e.Status.Message, e.Status.FinishedAt
	}
	return end
}
