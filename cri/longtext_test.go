package cri_test

import (
	"context"
	"strings"
	"testing"
)

// A message of megabytes is cut at 4 KiB, so that a status holds no more of it. The kubelet's own
// messages, which have at most 4,096 bytes, are kept whole.
func TestLongMessagesAreCut(t *testing.T) {
	for size, want := range map[int]int{4096: 4096, 4097: 4096 + len("…"), 10 << 20: 4096 + len("…")} {
		n := newExitNode()
		n.containerStatus = func(context.Context, *statusRequest) (*statusResponse, error) {
			s := exitedStatus("c", "Error")
			s.Message = strings.Repeat("x", size)
			return &statusResponse{Status: s}, nil
		}
		r := newRuntime(n)
		if got := getPodStatus(t, r, getPods(t, r)[0]).ContainerStatuses[0].Message; len(got) != want {
			t.Errorf("of %d bytes %d are kept", size, len(got))
		}
	}
}
