package criserver

import (
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kubepleg/pleg/internal/serverconfig"
)

func (c controls) SendTaskExit(e serverconfig.TaskExit) { c.sendTaskExit(e) }

// sendTaskExit sends the exit of a process to the subscribers of containerd's events.
func (s *Server) sendTaskExit(e serverconfig.TaskExit) {
	if e.ID == "" {
		e.ID = e.ContainerID
	}
	if e.ExitedAt.IsZero() {
		e.ExitedAt = s.cfg.own.Clock.Now()
	}
	if e.PID == 0 {
		e.PID = madeUpPID(e.ContainerID)
	}
	s.exits.send(exitTopic, encodeTaskExit(e))
}

// madeUpPID returns a PID for a container or sandbox whose configuration sets none. It is larger
// than any PID that Linux assigns.
func madeUpPID(id string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(id)) // writing to a hash cannot fail
	return 1<<23 | hash.Sum32()>>9
}

// pid returns the PID of a container's first process.
func (c *simContainer) pid() uint32 {
	if c.config.PID > 0 {
		return uint32(c.config.PID) //nolint:gosec // a PID
	}
	return madeUpPID(c.item.Id)
}

// processStarted sends containerd's event for the start of the first process of a container or
// sandbox.
func (s *Server) processStarted(id string, pid uint32) {
	if !s.cfg.crio {
		start := appendVarint(appendBytes(nil, 1, []byte(id)), 2, uint64(pid)) // container_id, pid
		s.exits.send(startTopic, encodeEvent(startTopic, "TaskStart", start, s.cfg.own.Clock.Now()))
	}
}

// containerChanged sends an event of containerd's own: a container or sandbox was created or
// deleted, or one of its processes was killed because memory was used up.
func (s *Server) containerChanged(topic, id string) {
	if !s.cfg.crio {
		name := map[string]string{createTopic: "ContainerCreate", deleteTopic: "ContainerDelete", oomTopic: "TaskOOM"}[topic]
		s.exits.send(topic, encodeEvent(topic, name, appendBytes(nil, 1, []byte(id)), s.cfg.own.Clock.Now()))
	}
}

func (c controls) TaskExitReaders() int {
	c.exits.mu.Lock()
	defer c.exits.mu.Unlock()
	return len(c.exits.readers)
}

// processExited reports the exit of the first process of a container or sandbox. The models of
// containerd send an event; those of CRI-O write an exit file.
func (s *Server) processExited(id string, pid uint32, exitCode int32, at int64) {
	if !s.cfg.crio {
		code := uint32(exitCode) //nolint:gosec // exit codes are small
		s.sendTaskExit(serverconfig.TaskExit{ContainerID: id, PID: pid, ExitCode: code, ExitedAt: time.Unix(0, at)})
		return
	}
	if s.cfg.own.ExitFiles == "" {
		return
	}
	path := filepath.Join(s.cfg.own.ExitFiles, id)
	temporary := path + ".ABCDEF"
	// A failure is ignored: the test may have removed the folder.
	_ = errors.Join(os.WriteFile(temporary, []byte(strconv.Itoa(int(exitCode))), 0o600), os.Rename(temporary, path))
}

// exitHub delivers containerd's own events. As in containerd, each subscriber receives all later
// events through its own unbounded queue.
type exitHub struct {
	mu      sync.Mutex
	readers map[*exitReader]struct{} // guarded by mu
}

// exitReader is one subscription.
type exitReader struct {
	topics []string      // set by subscribe
	queue  []rawMessage  // guarded by exitHub.mu
	more   chan struct{} // contains a token if queue may contain events
}

func newExitHub() *exitHub { return &exitHub{readers: make(map[*exitReader]struct{})} }

func (h *exitHub) send(topic string, event rawMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		if !slices.Contains(r.topics, topic) {
			continue
		}
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

// eventsService is containerd's events service without the methods that change something.
var eventsService = grpc.ServiceDesc{
	ServiceName: "containerd.services.events.v1.Events",
	HandlerType: (*any)(nil),
	Streams:     []grpc.StreamDesc{{StreamName: "Subscribe", Handler: subscribe, ServerStreams: true}},
}

// The topics of the events that the models of containerd send.
const (
	exitTopic   = "/tasks/exit"
	oomTopic    = "/tasks/oom"
	startTopic  = "/tasks/start"
	createTopic = "/containers/create"
	deleteTopic = "/containers/delete"
)

// topics returns the topics in a SubscribeRequest. It fails if the request contains a filter that
// the models do not support.
func topics(request rawMessage) (list []string, err error) {
	for len(request) > 0 {
		number, _, n := protowire.ConsumeTag(request)
		filter, length := protowire.ConsumeBytes(request[max(n, 0):])
		if n < 0 || length < 0 || number != 1 {
			return nil, status.Error(codes.InvalidArgument, "no filter")
		}
		request = request[n+length:]
		topic, _ := strings.CutSuffix(strings.TrimPrefix(string(filter), `topic=="`), `",namespace=="k8s.io"`)
		if topic != exitTopic && topic != oomTopic && topic != startTopic && topic != createTopic && topic != deleteTopic {
			return nil, status.Errorf(codes.InvalidArgument, "this containerd does not know the filter %s", filter)
		}
		list = append(list, topic)
	}
	return list, nil
}

// subscribe handles one call of Subscribe. When the server goes down, the stream's context ends.
func subscribe(server any, stream grpc.ServerStream) error {
	hub := server.(*Server).exits
	var request rawMessage
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	known, err := topics(request)
	if err != nil {
		return err
	}
	r := &exitReader{topics: known, more: make(chan struct{}, 1)}
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

// encodeTaskExit encodes an exit as containerd's message TaskExit.
func encodeTaskExit(e serverconfig.TaskExit) rawMessage {
	exit := appendBytes(nil, 1, []byte(e.ContainerID))  // container_id
	exit = appendBytes(exit, 2, []byte(e.ID))           // id
	exit = appendVarint(exit, 3, uint64(e.PID))         // pid
	exit = appendVarint(exit, 4, uint64(e.ExitCode))    // exit_status
	exit = appendBytes(exit, 5, encodeTime(e.ExitedAt)) // exited_at
	return encodeEvent(exitTopic, "TaskExit", exit, e.ExitedAt)
}

// encodeEvent encodes an event in an Any in an Envelope, as containerd sends it.
func encodeEvent(topic, name string, value []byte, at time.Time) rawMessage {
	event := appendBytes(nil, 1, []byte("containerd.events."+name)) // type_url
	event = appendBytes(event, 2, value)                            // value
	envelope := appendBytes(nil, 1, encodeTime(at))                 // timestamp
	envelope = appendBytes(envelope, 2, []byte("k8s.io"))           // namespace
	envelope = appendBytes(envelope, 3, []byte(topic))              // topic
	return appendBytes(envelope, 4, event)
}

func encodeTime(at time.Time) []byte {
	seconds := appendVarint(nil, 1, uint64(at.Unix()))       //nolint:gosec // as protobuf encodes it
	return appendVarint(seconds, 2, uint64(at.Nanosecond())) //nolint:gosec // not negative
}

func appendBytes(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func appendVarint(to []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), value)
}
