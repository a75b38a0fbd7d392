package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// If a runtime refuses to stream a list, but has streamed one before, streaming is retried after
// streamRetryFirst. Then the delay doubles, up to streamRetryLongest. If the runtime has never
// streamed a list, the delay is streamRetryLongest. A refused retry costs the list one extra call.
const (
	streamRetryFirst   = time.Second
	streamRetryLongest = 5 * time.Minute
)

// errNoStreamingLists is returned if the runtime does not support streaming lists.
var errNoStreamingLists = errors.New("no streaming lists")

// streaming decides whether a full list is streamed. Full lists run one at a time; the running list
// owns this value.
type streaming struct {
	off    bool // true with WithPlainLists
	worked bool // true once a full list has been streamed

	// The last refusal (Unimplemented). It counts only while wait is not 0.
	wait    time.Duration   // until streaming is retried; 0 if there is no refusal
	refused time.Time       // when the runtime refused
	by      *runtimeVersion // the runtime that refused
}

// due reports whether the next list should be streamed.
func (s *streaming) due(now time.Time, runtime *runtimeVersion) bool {
	switch {
	case s.off:
		return false
	case s.wait == 0 || *runtime != *s.by:
		return true
	}
	// If now is before the refusal, the clock was set back. The retry is then due at once, because
	// it would come much too late otherwise.
	return now.Before(s.refused) || now.Sub(s.refused) >= s.wait
}

// succeeded records that a full list was streamed.
func (s *streaming) succeeded() {
	s.worked, s.wait = true, 0
}

// fellBack records that the runtime refused to stream a full list, and that plain calls completed
// the list.
func (s *streaming) fellBack(now time.Time, runtime *runtimeVersion) {
	switch {
	case !s.worked:
		s.wait = streamRetryLongest
	case s.wait == 0:
		s.wait = streamRetryFirst
	default:
		s.wait = min(2*s.wait, streamRetryLongest)
	}
	s.refused, s.by = now, runtime
}

// plainListFailed records that a plain list failed. The last refusal to stream then no longer
// counts: a starting runtime refuses both kinds of list, and a list may have become too large for
// one message.
func (s *streaming) plainListFailed() {
	s.wait = 0
}

// noteStreaming records how a full list was completed. refusal is the error with which this version
// of the runtime refused to stream the list, or nil if it did not refuse.
func (r *Runtime) noteStreaming(ctx context.Context, streamed bool, refusal error, by *runtimeVersion) {
	s := &r.streaming
	was := listMode(r.listMode.Load())
	switch {
	case streamed:
		s.succeeded()
		r.listMode.Store(int32(listsStreaming))
		if was == listsPlain {
			r.log(ctx).V(2).Info("The runtime streams lists again")
		}
	case refusal != nil:
		s.fellBack(r.opts.clock.Now(), by)
		r.listMode.Store(int32(listsPlain))
		r.log(ctx).V(2).Info("The runtime does not stream lists; using plain lists",
			"err", refusal, "nextTry", s.wait)
	}
}

// listMode is how the last full list was completed.
type listMode int32

const (
	listsUnknown listMode = iota // no full list has been completed
	listsStreaming
	listsPlain
)

// askStream makes one of the two streaming calls of a pass, and reads the stream.
func (r *Runtime) askStream(ctx context.Context, p *pass, k kind) error {
	// If askStream returns before the end of the stream, cancel ends the stream.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var codec answerCodec
	if k == sandboxes {
		stream, err := r.client.streamPodSandboxes(ctx, &runtimeapi.ListPodSandboxRequest{}, callOptions(&codec)...)
		return readStream(p, k, &codec, stream, err, (*runtimeapi.ListPodSandboxResponse).GetItems, showSandbox)
	}
	stream, err := r.client.streamContainers(ctx, &runtimeapi.ListContainersRequest{}, callOptions(&codec)...)
	return readStream(p, k, &codec, stream, err, (*runtimeapi.ListContainersResponse).GetContainers, showContainer)
}

// readStream reads the answers of a stream to its end. If the stream breaks off, readStream returns
// an error, even if items were read.
func readStream[R, T any](p *pass, k kind, codec *answerCodec, stream receiver[R], err error,
	items func(*R) []*T, show func(*T, reading) shown) error {
	for first := true; err == nil; first = false {
		var resp *R
		resp, err = stream.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		// If the runtime does not support streaming, it answers Unimplemented first.
		if first && status.Code(err) == codes.Unimplemented {
			break
		}
		before := p.sides[k].items
		if err = readAnswer(p, k, codec, err, items(resp), show); err == nil {
			err = p.sides[k].countMessage(before)
		}
		if err != nil {
			return err
		}
	}
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w: %w", errNoStreamingLists, err)
	}
	return err
}
