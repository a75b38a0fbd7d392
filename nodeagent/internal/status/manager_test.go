package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/nodeagent/internal/podtest"
)

// sink records its calls, such as "u Running" and "remove u". While it is stuck, its calls block.
type sink struct {
	stuck chan struct{}

	mu    sync.Mutex
	calls []string // guarded by mu
	err   error    // guarded by mu
}

func (s *sink) Write(pod *v1.Pod) error {
	err := s.record(fmt.Sprint(pod.UID, " ", pod.Status.Phase))
	if s.stuck != nil {
		<-s.stuck
		<-s.stuck
	}
	return err
}

func (s *sink) Remove(pod *v1.Pod) error { return s.record(fmt.Sprint("remove ", pod.UID)) }

func (s *sink) record(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	return s.err
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// want compares the calls since the last want.
func (s *sink) want(t *testing.T, calls ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.calls, calls) {
		t.Errorf("the calls were %q, want %q", s.calls, calls)
	}
	s.calls = nil
}

// running runs a test with a manager in a bubble.
func running(t *testing.T, test func(m *Manager, s *sink, pod func(uid types.UID) *v1.Pod)) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		m := NewManager(s, nil, klog.Logger{}, func(*v1.Pod) {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Run(ctx)
		}()
		test(m, s, func(uid types.UID) *v1.Pod {
			pod := podtest.Pod(v1.RestartPolicyAlways, "c")
			pod.UID, pod.Name = uid, string(uid)
			return pod
		})
		cancel()
		<-done
	})
}

// A changed status is written at once, and an unchanged one never again. A failed write is repeated
// every ten seconds.
func TestManagerWrites(t *testing.T) {
	running(t, func(m *Manager, s *sink, pod func(types.UID) *v1.Pod) {
		m.SetPodStatus(pod("a"), v1.PodStatus{Phase: v1.PodPending}, nil)
		synctest.Wait()
		s.want(t, "a Pending")
		m.SetPodStatus(pod("a"), v1.PodStatus{Phase: v1.PodPending}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		s.want(t)
		s.fail(errors.New("on purpose"))
		m.SetPodStatus(pod("a"), v1.PodStatus{Phase: v1.PodRunning}, nil)
		synctest.Wait()
		s.want(t, "a Running")
		time.Sleep(syncPeriod)
		synctest.Wait()
		s.want(t, "a Running")
		s.fail(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		s.want(t, "a Running")
	})
}

// While a write is stuck, statuses can be set and read. Of several changes, only the last is written.
func TestManagerWithStuckSink(t *testing.T) {
	running(t, func(m *Manager, s *sink, pod func(types.UID) *v1.Pod) {
		s.stuck = make(chan struct{})
		for _, phase := range []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodSucceeded} {
			m.SetPodStatus(pod("a"), v1.PodStatus{Phase: phase}, nil)
			synctest.Wait()
		}
		if pods := m.Pods(); len(pods) != 1 || pods[0].Status.Phase != v1.PodSucceeded {
			t.Errorf("%v", pods)
		}
		close(s.stuck)
		synctest.Wait()
		s.want(t, "a Pending", "a Succeeded")
	})
}

// SyncPod returns when the pod's present status has been written.
func TestManagerSyncPod(t *testing.T) {
	running(t, func(m *Manager, s *sink, pod func(types.UID) *v1.Pod) {
		m.SetPodStatus(pod("a"), v1.PodStatus{Phase: v1.PodRunning}, map[string]string{"c": "id"})
		m.SyncPod("a")
		s.want(t, "a Running")
		if got := m.Interrupted("a"); got["c"] != "id" {
			t.Errorf("%v", got)
		}
	})
}

// A status that is deleted during its write is removed afterwards, and never written again. The
// statuses of orphans are removed. This test uses no bubble, because a goroutine waits for a mutex.
func TestManagerDeletes(t *testing.T) {
	s := &sink{stuck: make(chan struct{})}
	m := NewManager(s, nil, klog.Logger{}, func(*v1.Pod) {})
	m.SetPodStatus(podtest.Pod(v1.RestartPolicyAlways, "c"), v1.PodStatus{Phase: v1.PodRunning}, nil)
	kept := podtest.Pod(v1.RestartPolicyAlways, "c")
	kept.UID = "kept"
	written, removed := make(chan struct{}), make(chan error)
	go func() {
		defer close(written)
		m.SyncPod("u")
	}()
	s.stuck <- struct{}{}
	m.SetPodStatus(kept, v1.PodStatus{Phase: v1.PodRunning}, nil)
	go func() { removed <- m.RemoveOrphanedStatuses(func(uid types.UID) bool { return uid == "kept" }) }()
	for len(m.Pods()) > 1 {
		time.Sleep(time.Millisecond)
	}
	close(s.stuck)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	<-written
	m.SyncAll()
	s.want(t, "u Running", "remove u", "kept Running")
}
