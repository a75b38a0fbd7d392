package cri_test

import (
	"context"
	"strings"
	"testing"
)

// A container's message of megabytes is cut at 4 KiB, so that its status does not keep the rest in
// memory. A message of up to 4,096 bytes, the kubelet's limit, is kept whole.
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
