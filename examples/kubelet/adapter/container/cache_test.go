package container

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kubepleg/pleg"
)

// TestCacheReturnsTheKubeletsStatus shows what of a status is the kubelet's own and what
// the generator decides.
func TestCacheReturnsTheKubeletsStatus(t *testing.T) {
	c := NewCache().(*cache)
	source := &PodStatus{ID: "a", Name: "pod", IPs: []string{}, TimeStamp: time.Unix(1, 0)}
	stamp := time.Unix(2, 0)
	status := &pleg.PodStatus{ID: "a", IPs: []string{"10.0.0.1"}, TimeStamp: stamp, Source: source}
	c.PLEGCache().Set("a", status, nil, stamp)

	got, err := c.GetNewerThan("a", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "pod" || !slices.Equal(got.IPs, []string{"10.0.0.1"}) || !got.TimeStamp.Equal(stamp) {
		t.Errorf("the status is %+v", got)
	}
	if len(source.IPs) != 0 || !source.TimeStamp.Equal(time.Unix(1, 0)) {
		t.Errorf("the runtime's own status was modified: %+v", source)
	}

	failure := errors.New("the runtime has failed")
	c.PLEGCache().Set("a", nil, failure, time.Unix(3, 0))
	if got, err := c.Get("a"); !errors.Is(err, failure) || got == nil || got.Name != "pod" {
		t.Errorf("after a failure the cache has %+v, %v", got, err)
	}
	if got, err := c.Get("b"); err != nil || got == nil || got.ID != "b" || got.Name != "" {
		t.Errorf("of an unknown pod the cache has %+v, %v", got, err)
	}
}
