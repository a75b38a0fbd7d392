package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pidfdReader waits on the pidfds of processes until the processes end. It does nothing else, so no
// client that uses pidfds can be quicker.
type pidfdReader struct {
	epoll  int
	joined sync.WaitGroup
	stop   atomic.Bool
	ids    map[int32]string // container IDs by file descriptor

	mu    sync.Mutex
	ended map[string]time.Time // when the process ended, by container; guarded by mu
	// reaped is when the process was reaped, by container; guarded by mu. The exit code is known
	// from then on.
	reaped map[string]time.Time
}

// readPidfds opens a pidfd for each process, and starts to wait on them.
func readPidfds(mortals []mortal) (*pidfdReader, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	r := &pidfdReader{epoll: epoll, ids: map[int32]string{}, ended: map[string]time.Time{}, reaped: map[string]time.Time{}}
	for _, m := range mortals {
		fd, err := unix.PidfdOpen(m.pid, 0)
		if err != nil {
			r.release()
			return nil, fmt.Errorf("process %d: %w", m.pid, os.NewSyscallError("pidfd_open", err))
		}
		r.ids[int32(fd)] = m.id
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLHUP | unix.EPOLLET, Fd: int32(fd)}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			r.release()
			return nil, os.NewSyscallError("epoll_ctl", err)
		}
	}
	r.joined.Go(r.run)
	return r, nil
}

// run records when processes end, until the reader is closed.
func (r *pidfdReader) run() {
	events := make([]unix.EpollEvent, 16)
	for !r.stop.Load() {
		n, err := unix.EpollWait(r.epoll, events, 1000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // ends that are not recorded fail the measurement
		}
		at := time.Now()
		r.mu.Lock()
		for _, e := range events[:max(n, 0)] {
			id := r.ids[e.Fd]
			if r.ended[id].IsZero() {
				r.ended[id] = at
			}
			if e.Events&unix.EPOLLHUP != 0 && r.reaped[id].IsZero() {
				r.reaped[id] = at
			}
		}
		r.mu.Unlock()
	}
}

// of returns the times when a container's process ended and when it was reaped. On old kernels, the
// time when it was reaped is zero.
func (r *pidfdReader) of(id string) (ended, reaped time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended, reaped = r.ended[id], r.reaped[id]; ended.IsZero() {
		err = fmt.Errorf("the process of container %s has not ended", id)
	}
	return ended, reaped, err
}

func (r *pidfdReader) close() {
	r.stop.Store(true)
	r.joined.Wait()
	r.release()
}

func (r *pidfdReader) release() {
	for fd := range r.ids {
		_ = unix.Close(int(fd))
	}
	_ = unix.Close(r.epoll)
}
