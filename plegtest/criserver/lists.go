package criserver

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/crimessage"
)

// listSandboxes returns the sandboxes that match the filter, in random order.
func (n *node) listSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	var items []*runtimeapi.PodSandbox
	id, _ := n.wholeIDsLocked(f.GetId(), "")
	for _, s := range n.sandboxes {
		if passes(id, s.item.Id) && (f.GetState() == nil || f.GetState().State == s.item.State) &&
			selects(f.GetLabelSelector(), s.item.Labels) {
			items = append(items, s.item)
		}
	}
	n.order.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	return items
}

// listContainers returns the containers that match the filter, in random order.
func (n *node) listContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	n.mu.Lock()
	defer n.mu.Unlock()
	var items []*runtimeapi.Container
	sandbox, id := n.wholeIDsLocked(f.GetPodSandboxId(), f.GetId())
	for _, c := range n.containers {
		if passes(id, c.item.Id) && passes(sandbox, c.item.PodSandboxId) &&
			(f.GetState() == nil || f.GetState().State == c.state) &&
			selects(f.GetLabelSelector(), c.item.Labels) {
			items = append(items, c.item)
		}
	}
	n.order.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	return items
}

func passes(want, id string) bool {
	return want == "" || want == id
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// encodedList returns the encoded answer to a list request without a filter. For other requests it
// returns nil.
func (n *node) encodedList(req any) ([]byte, error) {
	var (
		kept *[]byte
		list func() any
	)
	switch r := req.(type) {
	case *runtimeapi.ListPodSandboxRequest:
		if f := r.GetFilter(); f.GetId() != "" || f.GetState() != nil || len(f.GetLabelSelector()) > 0 {
			return nil, nil
		}
		kept = &n.encodedSandboxes
		list = func() any { return &runtimeapi.ListPodSandboxResponse{Items: n.listSandboxes(nil)} }
	case *runtimeapi.ListContainersRequest:
		if f := r.GetFilter(); f.GetId() != "" || f.GetPodSandboxId() != "" || f.GetState() != nil ||
			len(f.GetLabelSelector()) > 0 {
			return nil, nil
		}
		kept = &n.encodedContainers
		list = func() any {
			return &runtimeapi.ListContainersResponse{Containers: n.listContainers(nil)}
		}
	default:
		return nil, nil
	}
	n.mu.Lock()
	encoded := *kept
	n.mu.Unlock()
	if encoded != nil {
		return encoded, nil
	}
	return n.encodeList(kept, list)
}

// encodeList encodes a list. It stores the result if the node did not change in the meantime.
func (n *node) encodeList(kept *[]byte, list func() any) ([]byte, error) {
	n.mu.Lock()
	changes := n.changes
	n.mu.Unlock()
	encoded, err := crimessage.Marshal(list())
	if err != nil {
		return nil, fmt.Errorf("encoding a list: %w", err)
	}
	if encoded == nil {
		encoded = []byte{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if changes == n.changes {
		*kept = encoded
	}
	return encoded, nil
}
