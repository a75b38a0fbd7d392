package kubelet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/kubepleg/pleg"
)

func showOlder(_ *testing.T, s *stage) {
	now := time.Now()
	older := now.Add(-time.Second)
	s.kubelet.cache.Set("a", &kubecontainer.PodStatus{ID: "a", Name: "newer"}, nil, now)
	s.kubelet.cache.Set("a", &kubecontainer.PodStatus{ID: "a", Name: "older"}, nil, older)
	s.here.cache.Set("a", &pleg.PodStatus{ID: "a", Name: "newer"}, nil, now)
	s.here.cache.Set("a", &pleg.PodStatus{ID: "a", Name: "older"}, nil, older)
	s.wantStatus("a", answer{content: content{ID: "a", Name: "older"}}, answer{content: content{ID: "a", Name: "newer"}})

	s.kubelet.cache.UpdateTime(now)
	s.kubelet.cache.UpdateTime(older)
	s.here.cache.UpdateTime(now)
	s.here.cache.UpdateTime(older)
	between := now.Add(-time.Millisecond)
	s.wantAnswered("reader in the kubelet", false, s.kubelet.read("b", between))
	s.wantAnswered("reader here", true, s.here.read(s.ctx, "b", between))
}

func showTimeStamp(t *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.relist()
	if status, _ := s.kubelet.cache.Get("a"); !status.TimeStamp.IsZero() {
		t.Errorf("the kubelet sets the time stamp to %v", status.TimeStamp)
	}
	if status, _ := s.here.cache.Get("a"); !status.TimeStamp.Equal(time.Now()) {
		t.Errorf("the time stamp is %v, the listing was at %v", status.TimeStamp, time.Now())
	}
}

func showFreshness(_ *testing.T, s *stage) {
	stamp := time.Now()
	ofKubelet, here := s.kubelet.read("a", stamp), s.here.read(s.ctx, "a", stamp)
	synctest.Wait()
	s.kubelet.cache.UpdateTime(stamp)
	s.here.cache.UpdateTime(stamp)
	s.wantAnswered("blocked reader in the kubelet", true, ofKubelet)
	s.wantAnswered("blocked reader here", false, here)
	s.wantAnswered("new reader in the kubelet", false, s.kubelet.read("a", stamp))
	s.wantAnswered("new reader here", false, s.here.read(s.ctx, "a", stamp))
}

func showReaderOfUnchanged(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.start()
	s.node.hang("a")
	s.kubelet.generator.RequestReinspect("a")
	s.here.generator.RequestReinspect("a")
	now := time.Now()
	ofKubelet, here := s.kubelet.read("a", now), s.here.read(s.ctx, "a", now)
	s.wait(time.Minute)
	s.wantAnswered("reader in the kubelet", false, ofKubelet)
	s.wantAnswered("reader here", true, here)
}

func showFailureStatus(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.relist()
	good, _ := s.here.get("a")
	s.node.inspectErr["a"] = errBroken
	s.node.set("a", "a1", exited)
	s.relist()
	s.wantStatus("a", answer{content{None: true}, errBroken}, answer{good, errBroken})
}

func showWithoutContainers(_ *testing.T, s *stage) {
	s.node.pods = append(s.node.pods, &modelPod{uid: "a"})
	s.podWith("b", "b1")
	s.relist()
	s.wantStatus("a",
		answer{content: content{ID: "a"}},
		answer{content: content{ID: "a", Name: "a", Namespace: "default"}})

	b := s.node.pod("b")
	b.containers, b.sandboxes = nil, nil
	s.relist()
	s.node.remove("b")
	s.relist()
	s.wantStatus("b",
		answer{content: content{ID: "b", Name: "b", Namespace: "default", IPs: []string{"10.0.0.1"}}},
		answer{content: content{ID: "b"}})
}

func showAbsenceObserved(_ *testing.T, s *stage) {
	before := time.Now().Add(-time.Second)
	ofKubelet, here := s.kubelet.read("a", before), s.here.read(s.ctx, "a", before)
	synctest.Wait()
	s.kubelet.cache.SetObservedTime("a", time.Now())
	s.here.cache.SetObservedTime("a", time.Now())
	s.wantAnswered("blocked reader in the kubelet", true, ofKubelet)
	s.wantAnswered("blocked reader here", true, here)
	s.wantAnswered("next reader in the kubelet", false, s.kubelet.read("a", before))
	s.wantAnswered("next reader here", true, s.here.read(s.ctx, "a", before))
}

func showBlockedReader(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.start()
	// The bubble's clock stands still, so a read with minTime = now would block.
	before := time.Now().Add(-1)
	ofKubelet, here := s.kubelet.read("a", before), s.here.read(s.ctx, "a", before)
	s.wait(10 * time.Millisecond)
	s.wantAnswered("reader in the kubelet", false, ofKubelet)
	s.wantAnswered("reader here", true, here)
	s.wait(time.Second)
	s.wantAnswered("reader in the kubelet, after a period", true, ofKubelet)
}

func showAddresses(_ *testing.T, s *stage) {
	s.podWith("a", "a1")
	s.relist()
	s.node.inspectErr["a"] = errBroken
	s.node.set("a", "a1", exited)
	s.relist()
	delete(s.node.inspectErr, "a")
	s.node.setSandbox("a", "a-sandbox", exited)
	s.relist()
	ofKubelet, _ := s.kubelet.get("a")
	here, _ := s.here.get("a")
	s.want("addresses in the kubelet", []string(nil), ofKubelet.IPs)
	s.want("addresses here", []string{"10.0.0.1"}, here.IPs)
}

func showCancel(t *testing.T, s *stage) {
	ofKubelet := s.kubelet.read("a", time.Now())
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	status, _, err := s.here.cache.LookupNewerThan(ctx, "a", time.Now())
	if status == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cancelled read returns %v, %v", status, err)
	}
	s.wantAnswered("reader in the kubelet", false, ofKubelet)
}
