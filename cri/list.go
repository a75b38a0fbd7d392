package cri

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg"
)

// listing is how full lists are asked for. It is found out once: the first full
// list tries to stream, and a runtime that does not know how is never asked again.
type listing int32

const (
	listsUntried listing = iota
	listsStreaming
	listsPlain
)

// errNoStreamingLists says that the runtime has no streaming lists.
var errNoStreamingLists = errors.New("no streaming lists")

// query is what is listed. The zero query is everything.
type query struct {
	podUID types.UID // of one pod
	live   bool      // only what is running or ready
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

// GetPods lists the pods of the runtime: its sandboxes and containers that carry
// the kubelet's label io.kubernetes.pod.uid, grouped by it. Pods are sorted by UID;
// in a pod, sandboxes come newest first (by attempt, then by time), and so do
// containers. If all is false, only ready sandboxes and running containers are
// asked for.
//
// If all is true, a pod in which nothing changed since the last such list is the
// same *pleg.Pod, and if nothing changed at all, the slice is the same too. Such
// lists run one at a time; a second one waits for the first, or for the end of its
// context.
//
// An error of either list is an error of GetPods.
func (r *Runtime) GetPods(ctx context.Context, all bool) ([]*pleg.Pod, error) {
	if !all {
		return r.list(ctx, newHeld(), query{live: true})
	}
	select {
	case r.relisting <- struct{}{}:
		defer func() { <-r.relisting }()
	case <-ctx.Done():
		return nil, fmt.Errorf("cri: GetPods: another list has not returned: %w", context.Cause(ctx))
	}
	return r.list(ctx, r.held, query{})
}

// GetPod lists one pod, with its exited containers, by the label
// io.kubernetes.pod.uid. It returns an error that wraps pleg.ErrPodNotFound if the
// runtime knows neither a sandbox nor a container of it, and the *pleg.Pod of the
// last full list if that shows the same.
func (r *Runtime) GetPod(ctx context.Context, uid types.UID) (*pleg.Pod, error) {
	if uid == "" {
		return nil, fmt.Errorf("cri: pod without UID: %w", pleg.ErrPodNotFound)
	}
	pods, err := r.listPod(ctx, query{podUID: uid})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		// A runtime that does not filter answers with others too.
		if pod.ID == uid {
			return r.held.reuse(pod), nil
		}
	}
	return nil, fmt.Errorf("cri: pod %s: %w", uid, pleg.ErrPodNotFound)
}

// list makes a list of the node, on the ground of what is held: sandboxes first, as
// the kubelet does, and containers when those have come. A container that is created
// in between then shows up without its sandbox, rather than a sandbox without
// containers that it has; and two lists of a large node at once would double the load
// that a relist puts on the runtime, for milliseconds that nobody waits for.
func (r *Runtime) list(ctx context.Context, h *held, q query) ([]*pleg.Pod, error) {
	name, err := r.name(ctx)
	if err != nil {
		return nil, err
	}
	p := h.begin(name)
	for k := range kinds {
		if err := r.listKind(ctx, p, k, q); err != nil {
			return nil, err
		}
	}
	return r.commit(ctx, p), nil
}

// listPod makes a list of one pod. Its two lists are asked for at once, for somebody
// waits for them: a reader, or whoever waits for the pod's events. If one fails, the
// other is cancelled. Lists of different moments do no harm here: both are asked for
// after the stamp of the listing, and what changes after that is in the next one.
func (r *Runtime) listPod(ctx context.Context, q query) ([]*pleg.Pod, error) {
	name, err := r.name(ctx)
	if err != nil {
		return nil, err
	}
	p := newHeld().begin(name)
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

// commit ends a pass whose lists are complete, counts what was listed, and logs what
// is bad in it.
func (r *Runtime) commit(ctx context.Context, p *pass) []*pleg.Pod {
	pods, tally := p.commit()
	r.countBad(&tally)
	for k := range kinds {
		side := &p.sides[k]
		r.metrics.skipped.Add(float64(side.skipped))
		r.metrics.decoded.Add(float64(side.decoded))
		for _, b := range side.found {
			r.reportBad(ctx, b.bad, b.kind.String(), b.id)
		}
	}
	return pods
}

// listKind makes one of the two lists of a pass.
func (r *Runtime) listKind(ctx context.Context, p *pass, k kind, q query) error {
	if q.all() && listing(r.lists.Load()) != listsPlain {
		err := r.streamKind(ctx, p, k)
		if !errors.Is(err, errNoStreamingLists) {
			return err
		}
		r.lists.Store(int32(listsPlain))
		r.log(ctx).V(2).Info("The runtime has no streaming lists, plain ones are used from now on", "err", err)
	}
	return r.do(plainRPC[k], target{podUID: q.podUID}, func() error { return r.askPlain(ctx, p, k, q) })
}

// plainRPC and streamRPC are the calls that list a kind.
var (
	plainRPC  = [kinds]rpc{sandboxes: rpcListPodSandbox, containers: rpcListContainers}
	streamRPC = [kinds]rpc{sandboxes: rpcStreamPodSandboxes, containers: rpcStreamContainers}
)

// askPlain asks for one of the two lists of a pass, and reads the answer.
func (r *Runtime) askPlain(ctx context.Context, p *pass, k kind, q query) error {
	var codec answerCodec
	if k == sandboxes {
		resp, err := r.client.ListPodSandbox(ctx,
			&runtimeapi.ListPodSandboxRequest{Filter: q.sandboxFilter()}, callOptions(&codec)...)
		return readAnswer(p, k, &codec, tooLarge(err), resp.GetItems(), showSandbox)
	}
	resp, err := r.client.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: q.containerFilter()}, callOptions(&codec)...)
	return readAnswer(p, k, &codec, tooLarge(err), resp.GetContainers(), showContainer)
}

func callOptions(codec *answerCodec) []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(codec), grpc.MaxCallRecvMsgSize(maxReceivedBytes)}
}

// tooLarge adds to the error of a plain list what can be done about a list that is
// larger than a message may be.
func tooLarge(err error) error {
	if status.Code(err) == codes.ResourceExhausted {
		return fmt.Errorf("%w (a list of more than %d MiB needs a runtime that streams its lists)", err, maxReceivedBytes>>20)
	}
	return err
}

// readAnswer reads what came of a call: the bytes that the codec kept or, if the
// client did not use it, the items that the client decoded. err is the call's.
func readAnswer[T any](p *pass, k kind, codec *answerCodec, err error, items []*T, show func(*T, string) shown) error {
	data, kept := codec.take()
	defer data.Free()
	if err != nil {
		return err
	}
	if kept {
		if err := p.readAnswer(k, data); err != nil {
			return fmt.Errorf("malformed answer: %w", err)
		}
		return nil
	}
	for _, it := range items {
		if it == nil {
			p.addNil(k)
			continue
		}
		p.add(k, show(it, p.runtimeName))
	}
	return nil
}

// streamKind makes one of the two lists of a pass as a stream.
func (r *Runtime) streamKind(ctx context.Context, p *pass, k kind) error {
	// Leaving before the end of the stream must end it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	err := r.do(streamRPC[k], target{}, func() error {
		var codec answerCodec
		if k == sandboxes {
			stream, err := r.client.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{}, callOptions(&codec)...)
			return readStream(p, k, &codec, stream, err, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes, showSandbox)
		}
		stream, err := r.client.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{}, callOptions(&codec)...)
		return readStream(p, k, &codec, stream, err, (*runtimeapi.StreamContainersResponse).GetContainers, showContainer)
	})
	if err == nil {
		r.lists.CompareAndSwap(int32(listsUntried), int32(listsStreaming))
	}
	return err
}

// readStream reads the answers of a stream to its end. That it breaks off before
// is an error, whatever came.
func readStream[R, T any](p *pass, k kind, codec *answerCodec, stream grpc.ServerStreamingClient[R], err error,
	items func(*R) []*T, show func(*T, string) shown) error {
	for first := true; err == nil; first = false {
		var resp *R
		resp, err = stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		// A runtime without streams says so with the first answer.
		if first && status.Code(err) == codes.Unimplemented {
			break
		}
		err = readAnswer(p, k, codec, err, items(resp), show)
		if err != nil {
			return err
		}
	}
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w: %w", errNoStreamingLists, err)
	}
	return err
}
