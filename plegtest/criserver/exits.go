package criserver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// TaskExit is the end of a process, as containerd tells it in its own stream of events. The
// models of containerd tell one of each container, of each sandbox and of each command that
// ends, before lists, statuses and CRI's events show it; none while they are down.
type TaskExit struct {
	// ContainerID is the container or sandbox.
	ContainerID string
	// ID is the process: ContainerID for the first of a container, another for a command that
	// was executed in it. SendTaskExit reads an empty one as ContainerID.
	ID string
	// ExitCode is the exit code.
	ExitCode uint32
	// ExitedAt is when it exited. SendTaskExit reads a zero one as now.
	ExitedAt time.Time
}

// SendTaskExit tells an exit that the caller made up: earlier than it comes, twice, of what does
// not exist. Only those who have subscribed get it.
func (s *Server) SendTaskExit(e TaskExit) {
	if e.ID == "" {
		e.ID = e.ContainerID
	}
	if e.ExitedAt.IsZero() {
		e.ExitedAt = s.cfg.clock.Now()
	}
	s.exits.send(e.encode())
}

// TaskExitReaders returns how many have subscribed to exits, and get those that come now. Who has
// just opened the stream may not be among them yet.
func (s *Server) TaskExitReaders() int {
	s.exits.mu.Lock()
	defer s.exits.mu.Unlock()
	return len(s.exits.readers)
}

// processExited tells the exit of a container's or sandbox's first process, as the model does.
func (s *Server) processExited(id string, exitCode int32, at int64) {
	if !s.cfg.crio {
		code := uint32(exitCode) //nolint:gosec // exit codes are small
		s.SendTaskExit(TaskExit{ContainerID: id, ExitCode: code, ExitedAt: time.Unix(0, at)})
		return
	}
	if s.cfg.exitsDir == "" {
		return
	}
	path := filepath.Join(s.cfg.exitsDir, id)
	temporary := path + ".ABCDEF"
	// A folder that the test has taken away gets no files.
	_ = errors.Join(os.WriteFile(temporary, []byte(strconv.Itoa(int(exitCode))), 0o600), os.Rename(temporary, path))
}

// exitHub delivers exits. As in containerd, who subscribes gets all that come later, and has a
// queue without a bound.
type exitHub struct {
	mu      sync.Mutex
	readers map[*exitReader]struct{} // guarded by mu
}

// exitReader is one subscription.
type exitReader struct {
	queue []rawMessage  // guarded by exitHub.mu
	more  chan struct{} // has a token while there may be something in queue
}

func newExitHub() *exitHub { return &exitHub{readers: make(map[*exitReader]struct{})} }

func (h *exitHub) send(event rawMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		r.queue = append(r.queue, event)
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
}

func (h *exitHub) join(r *exitReader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readers[r] = struct{}{}
}

func (h *exitHub) leave(r *exitReader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, r)
}

func (h *exitHub) take(r *exitReader) []rawMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	taken := r.queue
	r.queue = nil
	return taken
}

// eventsService is containerd's service of its own events, as far as it reads.
var eventsService = grpc.ServiceDesc{
	ServiceName: "containerd.services.events.v1.Events",
	HandlerType: (*any)(nil),
	Streams:     []grpc.StreamDesc{{StreamName: "Subscribe", Handler: subscribe, ServerStreams: true}},
}

// exitFilter is the one filter that the models know.
const exitFilter = `topic=="/tasks/exit",namespace=="k8s.io"`

// subscribe is one call of Subscribe. Down ends it by its context.
func subscribe(server any, stream grpc.ServerStream) error {
	hub := server.(*Server).exits
	var request rawMessage
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	known := protowire.AppendTag(nil, 1, protowire.BytesType)
	if !bytes.Equal(request, protowire.AppendString(known, exitFilter)) {
		return status.Errorf(codes.InvalidArgument, "this containerd knows one filter, %s", exitFilter)
	}
	r := &exitReader{more: make(chan struct{}, 1)}
	hub.join(r)
	defer hub.leave(r)
	for {
		select {
		case <-r.more:
			for _, event := range hub.take(r) {
				if err := stream.SendMsg(event); err != nil {
					return err
				}
			}
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// encode returns the message that containerd sends: an Envelope with a TaskExit in an Any.
func (e TaskExit) encode() rawMessage {
	at := appendVarint(nil, 1, uint64(e.ExitedAt.Unix()))              //nolint:gosec // as protobuf encodes it
	at = appendVarint(at, 2, uint64(e.ExitedAt.Nanosecond()))          //nolint:gosec // not negative
	exit := appendBytes(nil, 1, []byte(e.ContainerID))                 // container_id
	exit = appendBytes(exit, 2, []byte(e.ID))                          // id
	exit = appendVarint(exit, 3, 4711)                                 // pid
	exit = appendVarint(exit, 4, uint64(e.ExitCode))                   // exit_status
	exit = appendBytes(exit, 5, at)                                    // exited_at
	event := appendBytes(nil, 1, []byte("containerd.events.TaskExit")) // type_url
	event = appendBytes(event, 2, exit)                                // value
	envelope := appendBytes(nil, 1, at)                                // timestamp
	envelope = appendBytes(envelope, 2, []byte("k8s.io"))              // namespace
	envelope = appendBytes(envelope, 3, []byte("/tasks/exit"))         // topic
	return appendBytes(envelope, 4, event)
}

func appendBytes(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func appendVarint(to []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), value)
}
