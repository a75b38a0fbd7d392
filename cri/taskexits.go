package cri

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri/internal/wire"
)

// This file reads containerd's own events. It decodes the small messages by hand, because otherwise
// every user of the package would depend on containerd's API.
//
//	SubscribeRequest { repeated string filters = 1; }
//	Envelope         { Timestamp timestamp = 1; string namespace = 2; string topic = 3; Any event = 4; }
//	Any              { string type_url = 1; bytes value = 2; }
//	TaskExit         { string container_id = 1; string id = 2; uint32 pid = 3; uint32 exit_status = 4;
//	                   Timestamp exited_at = 5; }
//	TaskStart        { string container_id = 1; … }
//	TaskOOM          { string container_id = 1; }
//	ContainerCreate  { string id = 1; … }
//	ContainerDelete  { string id = 1; }
//	Timestamp        { int64 seconds = 1; int32 nanos = 2; }

// The topics of containerd's events, and the namespace of its CRI containers.
const (
	exitTopic     = "/tasks/exit"
	oomTopic      = "/tasks/oom"
	startTopic    = "/tasks/start"
	createTopic   = "/containers/create"
	deleteTopic   = "/containers/delete"
	exitNamespace = "k8s.io"
)

// The topics of the subscription for exits (exitTopics) and of that for container events.
var (
	exitTopics = []string{exitTopic, oomTopic}
	hintTopics = []string{createTopic, startTopic, deleteTopic}
)

// maxTaskExitBytes is the size of the largest message that is accepted. An exit takes some 300
// bytes.
const maxTaskExitBytes = 64 << 10

// watchTaskExits reads containerd's stream of exits.
func (r *Runtime) watchTaskExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	return r.watchTasks(ctx, exitStream, exitTopics, connected, func(event *taskEvent) {
		if event.topic == oomTopic {
			r.metrics.ooms.Inc()
			r.log(ctx).V(2).Info("The kernel has killed a process of a container that exceeded its memory",
				"containerID", event.exit.ContainerID)
			return
		}
		if event.exited && r.isOwnExit(event) {
			observe(event.exit)
		}
	})
}

// maxPodQuestions is how many calls of askPodOf run at once.
const maxPodQuestions = 8

// watchTaskHints reads containerd's stream of creations, starts and removals. A hint without a pod
// leads to a full list. If full lists fail, and a container without a known pod starts,
// watchTaskHints asks for the container's status to find the pod.
func (r *Runtime) watchTaskHints(ctx context.Context, connected func(), observe func(pleg.ContainerEvent)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var questions errgroup.Group
	questions.SetLimit(maxPodQuestions)
	err := r.watchTasks(ctx, eventStream, hintTopics, connected, func(event *taskEvent) {
		id := event.exit.ContainerID
		hint := pleg.ContainerEvent{PodUID: r.held.podOf(id), ContainerID: id, CreatedAt: event.at}
		asked := hint.PodUID == "" && event.topic == startTopic && r.listFailed.Load() && questions.TryGo(func() error {
			hint.PodUID = r.askPodOf(ctx, id)
			observe(hint)
			return nil
		})
		if !asked {
			observe(hint)
		}
	})
	cancel()
	_ = questions.Wait() // always nil
	return err
}

// askPodOf asks the runtime for the pod of a container. The result is empty if the container's
// status does not name a pod.
func (r *Runtime) askPodOf(ctx context.Context, id string) types.UID {
	ctx, cancel := context.WithTimeout(ctx, DefaultConnectTimeout)
	defer cancel()
	status, _ := r.askStatus(ctx, target{kind: "container", id: id})
	return types.UID(status.GetLabels()[labelPodUID])
}

// watchTasks reads containerd's stream of the events with the given topics.
func (r *Runtime) watchTasks(ctx context.Context, of target, topics []string, connected func(),
	observe func(*taskEvent)) error {
	w := r.newWatch(ctx, rpcSubscribe, of, connected)
	defer w.close()
	var stream grpc.ClientStream
	if err := guarded(func() (err error) {
		stream, err = r.subscribe(w.version.ctx, topics)
		return err
	}); err != nil {
		return w.end(err)
	}
	w.ask()
	for {
		var event taskEvent
		if err := guarded(func() error { return stream.RecvMsg(&event) }); err != nil {
			return w.end(err)
		}
		w.accept()
		r.badObject(ctx, event.found, object{kind: containers, id: event.exit.ContainerID})
		if slices.Contains(topics, event.topic) {
			observe(&event)
		}
	}
}

// isOwnExit reports whether the container itself has exited, with a known code. A command that
// runs in the container may report the container's ID as its own; its PID is not the one in the bundle.
// containerd sends code 255 without a PID if it lost the shim and does not know the exit.
func (r *Runtime) isOwnExit(event *taskEvent) bool {
	if event.pid == 0 {
		return event.exit.ExitCode != unknownCode
	}
	id := event.exit.ContainerID
	dir, _ := r.bundles()
	if dir == "" || !filepath.IsLocal(id) || filepath.Base(id) != id {
		return true
	}
	content, _, err := readSmallFile(filepath.Join(dir, id, "init.pid"), maxBundleFileBytes)
	if err != nil { // the container is already removed, or its shim keeps the PID elsewhere
		return true
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	return err != nil || pid == event.pid
}

// subscribe opens the stream. containerd sends each event that matches one of the filters.
func (r *Runtime) subscribe(ctx context.Context, topics []string) (grpc.ClientStream, error) {
	stream, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, rpcs[rpcSubscribe].method,
		grpc.ForceCodecV2(taskExitCodec{}), grpc.MaxCallRecvMsgSize(maxTaskExitBytes))
	if err != nil {
		return nil, err
	}
	var filters []string
	for _, topic := range topics {
		filters = append(filters, `topic=="`+topic+`",namespace=="`+exitNamespace+`"`)
	}
	if err := stream.SendMsg(filters); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

// taskExitCodec is the codec of the stream: it encodes filters as a SubscribeRequest, and decodes
// an Envelope as a taskEvent.
type taskExitCodec struct{ requestCodec }

func (taskExitCodec) Marshal(v any) (mem.BufferSlice, error) {
	var request []byte
	for _, filter := range v.([]string) {
		request = protowire.AppendString(protowire.AppendTag(request, 1, protowire.BytesType), filter)
	}
	return mem.BufferSlice{mem.SliceBuffer(request)}, nil
}

func (taskExitCodec) Unmarshal(data mem.BufferSlice, v any) error {
	event, err := decodeTask(data.Materialize())
	*v.(*taskEvent) = event
	return err
}

// taskEvent is an event of the stream.
type taskEvent struct {
	topic  string    // empty if the event names no container
	at     time.Time // when the event was sent
	exit   pleg.ContainerExit
	pid    int    // the PID of the ended process; 0 if the event contains none
	exited bool   // true if the container has exited, and not a command in it
	found  badSet // the kinds of bad data in the event
}

// decodeTask decodes an event. It fails if the envelope is malformed. If only the event in the
// envelope is malformed, decodeTask reports bad data and does not fail.
func decodeTask(message []byte) (taskEvent, error) {
	var event taskEvent
	var namespace, topic string
	var value []byte
	whole := wire.Each(message, func(number int, field []byte, _ uint64) {
		switch number {
		case 1:
			event.at = decodeTime(field)
		case 2:
			namespace = string(field)
		case 3:
			topic = string(field)
		case 4:
			value = field
		}
	})
	if !whole {
		return taskEvent{}, malformed(wire.ErrTruncated)
	}
	if namespace != exitNamespace || !slices.Contains(exitTopics, topic) && !slices.Contains(hintTopics, topic) {
		return taskEvent{}, nil // containerd has not applied the filters
	}
	var task []byte
	var id, process []byte
	var exitPID uint64
	whole = wire.Each(value, func(number int, field []byte, _ uint64) {
		if number == 2 {
			task = field
		}
	}) && wire.Each(task, func(number int, field []byte, n uint64) {
		switch number {
		case 1:
			id = field
		case 2:
			process = field
		case 3:
			exitPID = n
		case 4:
			event.exit.ExitCode = int(int32(n)) //nolint:gosec // as containerd's CRI converts it
		case 5:
			event.exit.FinishedAt = decodeTime(field)
		}
	})
	switch {
	case !whole:
		event.found = event.found.with(badExit)
	case len(id) == 0:
		event.found = event.found.with(badNoID)
	default:
		event.topic = topic
	}
	if event.topic == exitTopic {
		event.exited = bytes.Equal(id, process) // false if a command in the container has ended
		event.pid = int(uint32(exitPID))        //nolint:gosec // as protobuf encodes it
	}
	if !utf8.Valid(id) {
		event.found = event.found.with(badUTF8)
		id = bytes.ToValidUTF8(id, []byte(string(utf8.RuneError)))
	}
	event.exit.ContainerID = string(id)
	return event, nil
}

// decodeTime decodes a Timestamp. A time before 1970 becomes the zero time, because containerd
// sends Go's zero time as a time before 1970. A time that is too late for CRI's nanoseconds or for
// JSON becomes the zero time too.
func decodeTime(message []byte) time.Time {
	var seconds, nanos int64
	whole := wire.Each(message, func(number int, _ []byte, n uint64) {
		switch number {
		case 1:
			seconds = int64(n) //nolint:gosec // as protobuf encodes it
		case 2:
			nanos = int64(int32(n)) //nolint:gosec // as protobuf encodes it
		}
	})
	if !whole || seconds <= 0 || seconds >= math.MaxInt64/int64(time.Second) {
		return time.Time{}
	}
	return time.Unix(seconds, nanos)
}
