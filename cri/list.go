package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// query selects what is listed. The zero query selects everything.
type query struct {
	podUID types.UID // one pod only
	live   bool      // only running containers and ready sandboxes
	plain  bool      // everything, with plain calls only
}

func (q query) all() bool { return q == query{} }

func (q query) labels() map[string]string {
	if q.podUID == "" {
		return nil
	}
	return map[string]string{labelPodUID: string(q.podUID)}
}

func (q query) sandboxFilter() *runtimeapi.PodSandboxFilter {
	if q.all() {
		return nil
	}
	f := &runtimeapi.PodSandboxFilter{LabelSelector: q.labels()}
	if q.live {
		f.State = &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	}
	return f
}

func (q query) containerFilter() *runtimeapi.ContainerFilter {
	if q.all() {
		return nil
	}
	f := &runtimeapi.ContainerFilter{LabelSelector: q.labels()}
	if q.live {
		f.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	}
	return f
}

// GetPods lists the pods of the runtime: the sandboxes and containers with the kubelet's label
// io.kubernetes.pod.uid, grouped by its value. Pods are sorted by UID. In a pod, sandboxes are
// sorted newest first (by attempt, then creation time, then ID). Containers are sorted newest first
// too (by creation time, then attempt, then ID; containers of one name by attempt). If all is
// false, only ready sandboxes and running containers are listed.
//
// If all is true and nothing in a pod changed since the last full list, GetPods returns the same
// *pleg.Pod. If no pod changed, it returns the same slice. Full lists run one at a time: a second
// call waits for the first, or for the end of its context.
//
// cri-dockerd lists a sandbox as not ready until it has started the sandbox. GetPods and GetPod
// return the state of such a sandbox as unknown. The state becomes known when the sandbox is listed
// as ready or with a container.
//
// GetPods fails if either list fails.
func (r *Runtime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	if !all {
		return r.list(ctx, newHeld(), query{live: true})
	}
	select {
	case r.relisting <- struct{}{}:
		defer func() { <-r.relisting }()
	case <-ctx.Done():
		return nil, fmt.Errorf("cri: GetPods: another list is still running: %w", context.Cause(ctx))
	}
	begun := r.exits.listing()
	search, timedOut := r.beginSearch(ctx), false
	defer func() { r.endSearch(search, timedOut) }()
	pods, err := r.list(ctx, r.held, query{})
	r.listFailed.Store(err != nil)
	timedOut = err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded)
	r.exits.listed(begun, err)
	return pods, err
}

// GetPod lists one pod, with its exited containers, by the label io.kubernetes.pod.uid. If the
// runtime lists no sandbox and no container of the pod, the error wraps pleg.ErrPodNotFound. If the
// pod has not changed since the last full list, GetPod returns the same *pleg.Pod. It fails if
// either list fails.
func (r *Runtime) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	if uid == "" {
		return nil, fmt.Errorf("cri: pod without UID: %w", pleg.ErrPodNotFound)
	}
	var pods []*pleg.Pod
	var err error
	if r.opts.byMetadata {
		pods, err = r.list(ctx, newHeld(), query{plain: true})
	} else {
		pods, err = r.listPod(ctx, query{podUID: uid})
	}
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		// A runtime that ignores the filter lists other pods too.
		if pod.ID == uid {
			return r.held.reuse(pod), nil
		}
	}
	return nil, fmt.Errorf("cri: pod %s: %w", uid, pleg.ErrPodNotFound)
}

// list lists the node and compares the list with the held items. It lists the sandboxes first, as
// the kubelet does, and then the containers. So a container that is created between the two lists
// is listed without its sandbox. In the other order, or in parallel, a sandbox might be listed
// without some of its containers. On a large node, two lists in parallel would also double a
// relist's load on the runtime, and no caller waits for the milliseconds saved.
//
// A full list is streamed if the runtime supports it. If the runtime refuses, list completes the
// rest with plain calls.
func (r *Runtime) list(ctx context.Context, h *held, q query) ([]*pleg.Pod, error) {
	version, err := r.knownVersion(ctx)
	if err != nil {
		return nil, err
	}
	p := h.begin(reading{version.name, &r.opts})
	stream := q.all() && r.streaming.due(r.opts.clock.Now(), version)
	var refusal error
	for k := range kinds {
		if stream {
			err := r.do(ctx, streamRPC[k], target{}, func() error { return r.askStream(ctx, p, k) })
			if err == nil {
				continue
			}
			if !errors.Is(err, errNoStreamingLists) {
				return nil, err
			}
			stream, refusal = false, err
		}
		if err := r.do(ctx, plainRPC[k], target{}, func() error { return r.askPlain(ctx, p, k, q) }); err != nil {
			if q.all() {
				r.streaming.plainListFailed()
			}
			return nil, err
		}
	}
	if q.all() {
		r.noteStreaming(ctx, stream, refusal, version)
	}
	return r.commit(ctx, p), nil
}

// listPod lists one pod. Its two calls run in parallel, because a reader or the pod's events wait
// for the result. If one call fails, the other is cancelled. The runtime may answer the calls in
// either order: both calls begin after the time of the listing, and the listing promises nothing
// about later changes.
func (r *Runtime) listPod(ctx context.Context, q query) ([]*pleg.Pod, error) {
	version, err := r.knownVersion(ctx)
	if err != nil {
		return nil, err
	}
	p := newHeld().begin(reading{version.name, &r.opts})
	group := r.newCallGroup(ctx, int(kinds))
	for k := range kinds {
		group.start(plainRPC[k], target{podUID: q.podUID}, func(ctx context.Context) error {
			return r.askPlain(ctx, p, k, q)
		})
	}
	if err := group.wait(); err != nil {
		return nil, err
	}
	return r.commit(ctx, p), nil
}

// commit ends a pass whose lists are complete, counts the listed items, and logs the bad items.
func (r *Runtime) commit(ctx context.Context, p *pass) []*pleg.Pod {
	pods, tally := p.commit()
	r.countBad(&tally)
	for k := range kinds {
		side := &p.sides[k]
		r.metrics.skipped.Add(float64(side.skipped))
		r.metrics.decoded.Add(float64(side.decoded))
		for _, b := range side.found {
			r.reportBad(ctx, b.bad, b.object)
		}
	}
	return pods
}

// plainRPC and streamRPC are the calls that list sandboxes or containers.
var (
	plainRPC  = [kinds]rpc{sandboxes: rpcListPodSandbox, containers: rpcListContainers}
	streamRPC = [kinds]rpc{sandboxes: rpcStreamPodSandboxes, containers: rpcStreamContainers}
)

// askPlain makes one of the two plain calls of a pass, and reads its answer.
func (r *Runtime) askPlain(ctx context.Context, p *pass, k kind, q query) error {
	var codec answerCodec
	if k == sandboxes {
		resp, err := r.client.listPodSandbox(ctx,
			&runtimeapi.ListPodSandboxRequest{Filter: q.sandboxFilter()}, callOptions(&codec)...)
		return readAnswer(p, k, &codec, err, resp.GetItems(), showSandbox)
	}
	resp, err := r.client.listContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: q.containerFilter()}, callOptions(&codec)...)
	return readAnswer(p, k, &codec, err, resp.GetContainers(), showContainer)
}

func callOptions(codec *answerCodec) []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(codec), grpc.MaxCallRecvMsgSize(maxReceivedBytes)}
}

// tooLarge adds the size limit to the error of a list that exceeds the limit of a message.
func tooLarge(err error) error {
	if status.Code(err) == codes.ResourceExhausted {
		return fmt.Errorf("%w (the limit is %d MiB a message, or the runtime's own if lower)", err, maxReceivedBytes>>20)
	}
	return err
}

// readAnswer reads the answer of a call: the bytes that the codec kept or, if the client
// did not use the codec, the items that the client decoded. err is the call's error.
func readAnswer[T any](p *pass, k kind, codec *answerCodec, err error, items []*T, show func(*T, reading) shown) error {
	data, kept := codec.take()
	defer data.Free()
	if err != nil {
		return tooLarge(err)
	}
	if kept {
		return p.readAnswer(k, data)
	}
	for _, it := range items {
		if err := p.sides[k].count(); err != nil {
			return err
		}
		if it == nil {
			p.addNil(k)
			continue
		}
		p.add(k, show(it, p.by))
	}
	return nil
}
