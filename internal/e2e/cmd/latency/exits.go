package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

// exitWatchers see deaths through the runtime's exit events.
type exitWatchers struct {
	// generator has exit events and no hints. Hints come later than exit events, and would cause
	// calls that slow down the generator that is measured with hints.
	generator *observer
	// raw is a bare reader of containerd's exit events. It is nil on CRI-O, which reports exits in
	// files.
	raw *exitReader
	// waits is a bare client of containerd's shims. It is nil on CRI-O, which has none.
	waits *waitReader
}

func watchExits(ctx context.Context, daemon *testnode.Daemon, mortals []mortal) (*exitWatchers, error) {
	generator, err := observe(ctx, daemon.Endpoint(), func(func()) {}, []cri.Option{cri.WithExitsDir(daemon.ExitsDir())})
	if err != nil {
		return nil, err
	}
	w := &exitWatchers{generator: generator}
	if err := generator.awaitStream(ctx, exitStream); err != nil {
		w.close()
		return nil, err
	}
	if daemon.ExitsDir() == "" {
		if w.raw, err = readExits(ctx, daemon.Endpoint()); err == nil {
			w.waits, err = readWaits(mortals, filepath.Join(daemon.Dir(), "state"))
		}
		if err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

func (w *exitWatchers) close() {
	w.generator.close()
	if w.raw != nil {
		w.raw.close()
	}
	if w.waits != nil {
		w.waits.close()
	}
}

// exitReader reads containerd's exit events over a connection of its own. It does not decode the
// events, so no client can be quicker.
type exitReader struct {
	conn   *grpc.ClientConn
	joined sync.WaitGroup

	mu   sync.Mutex
	read []exitMessage
}

// exitMessage is an encoded event and the time when it was read.
type exitMessage struct {
	event []byte
	at    time.Time
}

// subscription returns an encoded SubscribeRequest with one filter.
func subscription() []byte {
	const filter = `topic=="/tasks/exit",namespace=="k8s.io"`
	return append([]byte{1<<3 | 2, byte(len(filter))}, filter...)
}

func readExits(ctx context.Context, endpoint string) (*exitReader, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting for exit events: %w", err)
	}
	r := &exitReader{conn: conn}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		"/containerd.services.events.v1.Events/Subscribe", grpc.ForceCodecV2(rawCodec{}))
	if err == nil {
		err = stream.SendMsg(subscription())
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("asking for exit events: %w", err)
	}
	r.joined.Go(func() {
		for {
			var event []byte
			if stream.RecvMsg(&event) != nil {
				return // the stream has ended; missing exits fail the measurement
			}
			at := time.Now()
			r.mu.Lock()
			r.read = append(r.read, exitMessage{event, at})
			r.mu.Unlock()
		}
	})
	return r, nil
}

func (r *exitReader) close() {
	r.conn.Close()
	r.joined.Wait()
}

// of returns the time when the exit event of a container was read.
func (r *exitReader) of(id string) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.read {
		if bytes.Contains(m.event, []byte(id)) {
			return m.at, nil
		}
	}
	return time.Time{}, fmt.Errorf("containerd sent no exit of container %s", id)
}

// rawCodec passes messages through without decoding.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// exitSamples are latencies of exit events and, for comparison, of CRI's events of the same deaths.
type exitSamples struct {
	// These are times from the end of the process until one of these:
	//   - reaped: a bare reader of the pidfd sees the exit code.
	//   - wait: a bare client's call of Wait is answered by the shim.
	//   - raw: a bare reader of containerd's exit events reads the event.
	//   - sent: the generator sends ContainerDied.
	//   - cri: a bare reader of CRI's events reads the event.
	reaped, wait, raw, sent, cri measure.Samples
	// behind is how much later ContainerDied comes than the same event comes to the bare reader. On
	// CRI-O, it is how much later than the bare reader of the pidfd sees the exit code.
	behind measure.Samples
}

// add adds the samples of one death, and returns the time when the process ended.
func (s *exitSamples) add(w *exitWatchers, pidfds *pidfdReader, m mortal) (ended time.Time, err error) {
	ended, reaped, err := pidfds.of(m.id)
	if err != nil {
		return ended, err
	}
	died := w.generator.diedAt(m)
	s.sent = append(s.sent, died.Sub(ended))
	if !reaped.IsZero() {
		s.reaped = append(s.reaped, reaped.Sub(ended))
	}
	if w.raw != nil {
		read, missing := w.raw.of(m.id)
		answered, unanswered := w.waits.of(m.id)
		if err := errors.Join(missing, unanswered); err != nil {
			return ended, err
		}
		s.raw, s.wait = append(s.raw, read.Sub(ended)), append(s.wait, answered.Sub(ended))
		s.behind = append(s.behind, died.Sub(read))
	} else if !reaped.IsZero() {
		s.behind = append(s.behind, died.Sub(reaped))
	}
	return ended, nil
}

func (s *exitSamples) report(r *report) {
	const died = "process end → ContainerDied, exit events"
	const behind = "a bare reader of /tasks/exit (CRI-O: the pidfd) → ContainerDied, exit events"
	r.line("process end → a bare reader of its pidfd", s.reaped)
	r.line("process end → a bare Wait, of the shim", s.wait)
	r.line("process end → a bare reader of containerd's /tasks/exit", s.raw)
	r.line(behind, s.behind)
	r.within(behind, s.behind, 300*time.Microsecond, 3*time.Millisecond)
	r.line(died, s.sent)
	r.within(died, s.sent, 1500*time.Microsecond)
	if len(s.cri) == 0 {
		return
	}
	r.line("process end → a bare reader of CRI's events", s.cri)
	r.ratio(s.cri, s.sent)
	const times = 10
	is := float64(s.cri.Quantile(0.5)) / float64(s.sent.Quantile(0.5))
	r.target(is >= times, fmt.Sprintf("CRI's event takes %.1f times as long at p50, the target is %d times", is, times))
}
