package plegz_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// stream is a test client of the handler's stream. It stores the messages that it received.
type stream struct {
	header   http.Header
	messages chan []byte
	status   chan int
	end      context.CancelFunc
	part     []byte // an incomplete message
}

// open opens a stream. A goroutine serves it until the test ends.
func (n *node) open(target, lastEventID string) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{make(http.Header), make(chan []byte, 10000), make(chan int, 10000), cancel, nil}
	r := request(target).WithContext(ctx)
	if lastEventID != "" {
		r.Header.Set("Last-Event-ID", lastEventID)
	}
	go n.ServeHTTP(s, r)
	n.t.Cleanup(func() { cancel(); synctest.Wait() })
	return s
}

func (s *stream) Header() http.Header  { return s.header }
func (s *stream) WriteHeader(code int) { s.status <- code }
func (s *stream) Flush()               {}

func (s *stream) Write(b []byte) (int, error) {
	if s.part = append(s.part, b...); bytes.HasSuffix(s.part, []byte("\n\n")) {
		s.messages <- s.part
		s.part = nil
	}
	return len(b), nil
}

// message returns the next message that the stream received.
func message(t *testing.T, s *stream) state {
	t.Helper()
	select {
	case b := <-s.messages:
		_, data, found := strings.Cut(string(b), "\ndata: ")
		if !found {
			t.Fatalf("no data in %q", b)
		}
		return decode(t, []byte(data))
	default:
		t.Fatal("no message")
		return state{}
	}
}

// first returns the first message, which must come at once.
func first(t *testing.T, s *stream) state {
	t.Helper()
	synctest.Wait()
	return message(t, s)
}

func drain(s *stream) {
	for len(s.messages) > 0 {
		<-s.messages
	}
}
