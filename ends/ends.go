// Package ends reports each end of a container until the program acknowledges it, over restarts and
// kills. A kill repeats one report at most.
//
// A program that keeps nothing does not know after a restart which ends it has reported, and never
// learns of containers that ended and were removed in between. Follow keeps in a folder which
// containers exist or are gone, and which ends are open: not acknowledged by the program.
package ends

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

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

	// A container that is gone stays known for goneTime, because a later list may show it again. At most
	// mostGone stay known, which is more than a node runs.
	goneTime = time.Hour
	mostGone = 5000

	// reasonTime is how long after an end the runtime may correct the reason. containerd 2 does so 10 to
	// 500 ms late.
	reasonTime = 2 * time.Second
	// firstWait is the longest wait for what this generator learns of an end from before it. The generator
	// looks for the reason two seconds after it first shows the end.
	firstWait = 3 * time.Second
)

// End is how a container ended.
type End struct {
	// ID is unique. If an end is reported again, also by a later Follow, the ID stays the same, unless the
	// end was never written.
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"podUID"`
	Container string    `json:"container"`
	// ContainerID is the runtime's ID, without a prefix such as "containerd://". If a runtime starts a
	// container again with the same ID, each life has an end of its own.
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
	// Unconfirmed is true if the runtime's own status has not shown the end: for ten seconds, or before the
	// container was gone or started again (see pleg.Status). Reason is then Completed or Error, depending on
	// the code. If report returns an error, a later report may have the runtime's reason, but not if the
	// container is gone.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// Gone is true if the container was gone, or was started again, before anyone saw its end. Known is
	// then false. If a list has omitted a container that lives on, its real end is reported later, too.
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

// Follow calls report for the end of each container, until ctx ends or the generator stops. This includes
// containers that were created but never ran. A container that appears and disappears during a single
// inspection may be missed: see [pleg.Handler]. Follow returns as [pleg.GenericPLEG.Handle] does, after
// the last call of report.
//
// If the runtime is away at first, Follow reports no new end before the first list succeeds. An end that
// an earlier Follow did not finish is reported after three seconds at most, with the code and reason that
// are known by then.
//
// The ends include those from before Follow, if the runtime still has the container: see FinishedAt.
// They include containers that an earlier Follow on the same folder knew, and that are gone.
//
// If report returns nil, the end is acknowledged, and is not reported again. This holds even if a list
// without an error omits the container, and a list within an hour shows it again. Of the containers
// that are gone, Follow remembers the last 5000.
//
// # Code, reason and message
//
// They are those of the event [pleg.ContainerEnded]. If only lists have shown the exit by then, the
// report waits for an inspection. If the end is in the generator's first list and less than two seconds
// old, the report waits for three seconds, because the runtime may correct the reason. Before an
// acknowledgement, a repeated report has what is known by then: the code if it was unknown, and the
// runtime's own reason if the earlier one was unconfirmed (see [pleg.Status]) or was corrected.
//
// The reason may be too early if the runtime corrects it after the acknowledgement, or cannot be asked
// in the two seconds after the end: Follow does not wait for the runtime. It may also be too early if
// the runtime corrects it, and removes the container, while the program is away.
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
// its file, a folder is a new one. The file has an entry for each container that the runtime lists or
// that Follow remembers, and for each end that is not acknowledged. It grows with them, and does not
// shrink.
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
	f := &follower{
		store: s, clock: g.Clock(), changed: make(chan struct{}, 1), due: make(chan struct{}, 1),
		added: make(map[types.UID]time.Time),
	}
	f.mu.Lock()
	for _, o := range f.open {
		f.holdLocked(o, firstWait)
	}
	f.mu.Unlock()
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
	clock   clock.PassiveClock
	changed chan struct{} // receives when there is something to write
	due     chan struct{} // receives when an end may be due
	looking bool          // true while containers of earlier followers may be gone; guarded by mu
	// added has the time of each pod's first event; zero for pods whose events came before OnSynced. It is
	// nil once nothing is looked for. It is guarded by mu.
	added map[types.UID]time.Time
}

// improves reports whether e may replace was. A runtime that has restarted may know less than before.
func (e End) improves(was End) bool {
	return !was.Known || e.Known && (!e.Unconfirmed || was.Unconfirmed)
}

// container is a container that the runtime lists, that an earlier follower has listed, or that is gone.
type container struct {
	// End is the end of the container's present life. Gone is true if it was reported as gone.
	End
	// Ended is true if the end is open or acknowledged. An end that says only Gone does not count.
	Ended bool `json:"ended,omitempty"`
	// GoneSince is when the container was gone; zero if it is not.
	GoneSince time.Time `json:"goneSince,omitzero"`

	seen      bool     // true once this follower has an event of the container
	endedHere bool     // true once this follower has the ContainerEnded of the present life
	end       *openEnd // the open end of the present life; nil if there is none
}

// openEnd is an end that is not acknowledged.
type openEnd struct {
	End
	number   uint64
	failures int
	held     *time.Timer // runs until the end is due; nil if it is due
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
		OnPodAdded: func(pod *pleg.Pod, _ bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.added != nil {
				f.added[pod.ID] = f.clock.Now()
			}
		},
		OnPodRemoved: func(pod *pleg.Pod) {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.added, pod.ID)
		},
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
			for uid := range f.added {
				f.added[uid] = time.Time{}
			}
			wake(f.changed)
			for _, o := range f.open { // the events of their containers have come
				if o.held != nil && !f.mayChange(o.End) {
					o.held.Stop()
					o.held = nil
				}
			}
			wake(f.due)
		},
	}
}

// observeLocked updates what is known of a container and of its open end.
func (f *follower) observeLocked(e *pleg.PodLifecycleEvent) *container {
	now, c := endOf(e), f.containers[e.Container.ID.ID]
	back := c != nil && !c.GoneSince.IsZero()
	if back { // it was missing from a list
		c.GoneSince = time.Time{}
		f.gone = slices.DeleteFunc(f.gone, func(other *container) bool { return other == c })
	}
	if c != nil && !c.StartedAt.IsZero() && !now.StartedAt.IsZero() && !c.StartedAt.Equal(now.StartedAt) {
		f.endLocked(c, true) // another life has begun
		c = nil
	}
	if c == nil {
		c = new(container)
		f.containers[now.ContainerID] = c
	}
	before := c.End
	now.StartedAt = cmp.Or(now.StartedAt, c.StartedAt)
	c.StartedAt = now.StartedAt
	now.ID = c.ID
	switch o := c.end; {
	case !c.Ended && now.improves(c.End):
		now.Gone = c.Gone
		c.End = now
	case o != nil && now.Known && now != o.End && now.improves(o.End):
		o.End = now // for the next report
		f.putLocked(endsBucket, endKey(o.number), o)
	}
	if c.seen = true; back || c.End != before {
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
		// For an end in its first list, the generator has not waited for the reason.
		if f.endLocked(c, !shown) && e.Initial && f.mayChange(c.End) {
			f.holdLocked(c.end, firstWait)
		}
	}
}

// mayChange reports whether the runtime may still correct an end.
func (f *follower) mayChange(e End) bool {
	return e.Known && e.Reason != "Completed" && f.clock.Since(e.FinishedAt) < reasonTime
}

// endLocked opens the end of a container, unless it is open or acknowledged already. gone is true if
// the runtime does not show the end. endLocked returns true if it has opened the end.
func (f *follower) endLocked(c *container, gone bool) bool {
	gone = gone && !c.Known
	if c.Ended || gone && c.Gone {
		return false
	}
	c.Ended, c.Gone, c.ID = !gone, gone, rand.Text()
	f.putLocked(containersBucket, c.ContainerID, c)
	f.newest++
	o := &openEnd{End: c.End, number: f.newest}
	if c.Ended {
		c.end = o
	}
	f.open = append(f.open, o)
	f.putLocked(endsBucket, endKey(f.newest), o)
	wake(f.due)
	return true
}

// holdLocked makes an end due after a wait.
func (f *follower) holdLocked(o *openEnd, wait time.Duration) {
	o.held = time.AfterFunc(wait, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		o.held = nil
		wake(f.due)
	})
}

// goneLocked handles a container that the runtime no longer has.
func (f *follower) goneLocked(c *container) {
	if c != nil {
		f.endLocked(c, true)
		c.GoneSince, c.Message, c.endedHere = f.clock.Now(), "", false
		f.gone = append(f.gone, c)
		f.putLocked(containersBucket, c.ContainerID, c)
	}
}

// forgetGoneLocked forgets containers that are gone. It returns when it has to be called again, if
// nothing changes.
func (f *follower) forgetGoneLocked() (again time.Duration) {
	for len(f.gone) > 0 {
		c := f.gone[0]
		again = goneTime - f.clock.Since(c.GoneSince)
		if again > 0 && len(f.gone) <= mostGone {
			return again
		}
		f.gone = f.gone[1:]
		delete(f.containers, c.ContainerID)
		f.putLocked(containersBucket, c.ContainerID, nil)
	}
	return never
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
	f.mu.Lock()
	if f.looking && !f.forgetLocked(g) {
		f.looking, f.added = false, nil
	}
	again = f.forgetGoneLocked()
	if f.looking {
		again = min(again, lookAgain)
	}
	f.mu.Unlock()
	if f.flush() != nil {
		again = min(again, writeAgain)
	}
	return again
}

// forgetLocked ends the containers of earlier followers that are gone. It returns true if a
// container or its pod is listed and has no event yet, because the inspection of the pod is slow.
func (f *follower) forgetLocked(g *pleg.GenericPLEG) (waits bool) {
	var unseen []*container
	for _, c := range f.containers {
		if !c.seen && c.GoneSince.IsZero() {
			unseen = append(unseen, c)
		}
	}
	if unseen == nil {
		return false
	}
	listed, inspects := make(map[string]bool), make(map[types.UID]bool)
	for _, pod := range g.Pods() {
		added, is := f.added[pod.ID]
		inspects[pod.ID] = !is || f.clock.Since(added) < lookAgain // its events may still come
		for _, c := range pod.Containers {
			listed[c.ID.ID] = true
		}
	}
	slices.SortFunc(unseen, func(a, b *container) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	for _, c := range unseen {
		if listed[c.ContainerID] || inspects[c.PodUID] {
			waits = true
		} else {
			f.goneLocked(c)
		}
	}
	return waits
}

// reportDue calls report with each end that is due.
func (f *follower) reportDue(ctx context.Context, report func(context.Context, End) error) {
	for o, end := f.firstDue(); o != nil && ctx.Err() == nil; o, end = f.firstDue() {
		_ = f.flush() // so that the end outlives the program; a full disk silences no report
		if err := report(ctx, end); err != nil {
			if o.failures == 0 && ctx.Err() == nil {
				f.logger.Error(err, "Cannot report the end of a container; will try again until it can", "end", end.String())
			}
			f.failed(o)
		} else {
			f.acknowledge(o)
		}
	}
}

// firstDue returns the oldest end that is due; nil if there is none.
func (f *follower) firstDue() (*openEnd, End) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.open {
		if o.held == nil {
			return o, o.End
		}
	}
	return nil, End{}
}

// failed makes an end due again after a wait.
func (f *follower) failed(o *openEnd) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holdLocked(o, min(time.Second<<min(o.failures, 10), longestWait))
	o.failures++
}

// acknowledge returns when the acknowledgement is written, so that a kill repeats one report at most.
func (f *follower) acknowledge(o *openEnd) {
	f.mu.Lock()
	f.open = slices.DeleteFunc(f.open, func(other *openEnd) bool { return other == o })
	if c := f.containers[o.ContainerID]; c != nil && c.end == o {
		c.end = nil
	}
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
		end.Known, end.Unconfirmed, end.ExitCode, end.Reason = true, e.Status.Unconfirmed, code, reason
		end.Message, end.FinishedAt = e.Status.Message, e.Status.FinishedAt
	}
	return end
}
