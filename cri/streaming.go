package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Streaming lists are tried again streamRetryFirst after the first refusal of a
// runtime that has streamed lists before, and then after twice as long each time up to
// streamRetryLongest; of a runtime that never has, after streamRetryLongest. A try that
// fails costs a list one call more.
const (
	streamRetryFirst   = time.Second
	streamRetryLongest = 5 * time.Minute
)

// errNoStreamingLists says that the runtime has no streaming lists.
var errNoStreamingLists = errors.New("no streaming lists")

// streaming decides which full lists are streamed. Full lists run one at a time, and
// it belongs to the one that runs.
type streaming struct {
	off    bool // by WithPlainLists
	worked bool // a full list has been streamed

	// The last refusal, Unimplemented, if no list has been streamed since: how long
	// after it streaming is tried again, 0 if it was not refused; when it was; and by
	// which runtime.
	wait    time.Duration
	refused time.Time
	by      *runtimeVersion
}

// due reports whether the next list is to be streamed.
func (s *streaming) due(now time.Time, runtime *runtimeVersion) bool {
	switch {
	case s.off:
		return false
	case s.wait == 0 || *runtime != *s.by:
		return true
	}
	// A clock that was set back must not put the next try off by as much.
	return now.Before(s.refused) || now.Sub(s.refused) >= s.wait
}

// succeeded notes that a list was streamed.
func (s *streaming) succeeded() {
	s.worked, s.wait = true, 0
}

// fellBack notes that the runtime refused to stream a list, which was then completed
// with plain ones.
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

// plainListFailed notes that a plain list failed. A refusal is believed as long as
// plain lists work: a runtime that is starting refuses both, and a list may have become
// too large for one message.
func (s *streaming) plainListFailed() {
	s.wait = 0
}

// noteStreaming notes how a full list was completed: streamed, or with plain lists,
// with the error with which this runtime refused to stream it if it was tried.
func (r *Runtime) noteStreaming(ctx context.Context, streamed bool, refusal error, by *runtimeVersion) {
	s := &r.streaming
	was := listMode(r.listMode.Load())
	switch {
	case streamed:
		s.succeeded()
		r.listMode.Store(int32(listsStreaming))
		if was == listsPlain {
			r.log(ctx).V(2).Info("The runtime streams its lists again")
		}
	case refusal != nil:
		s.fellBack(r.opts.clock.Now(), by)
		r.listMode.Store(int32(listsPlain))
		r.log(ctx).V(2).Info("The runtime does not stream its lists, plain lists are used", "err", refusal, "nextTry", s.wait)
	}
}

// listMode is how the last full list was completed.
type listMode int32

const (
	listsUnknown listMode = iota // there was none
	listsStreaming
	listsPlain
)

// askStream asks for one of the two lists of a pass as a stream, and reads it.
func (r *Runtime) askStream(ctx context.Context, p *pass, k kind) error {
	// Leaving before the end of the stream must end it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var codec answerCodec
	if k == sandboxes {
		stream, err := r.client.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{}, callOptions(&codec)...)
		return readStream(p, k, &codec, stream, err, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes, showSandbox)
	}
	stream, err := r.client.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{}, callOptions(&codec)...)
	return readStream(p, k, &codec, stream, err, (*runtimeapi.StreamContainersResponse).GetContainers, showContainer)
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
