package plegz

import (
	"net/http"
	"time"
)

const (
	// A client must read each chunk within writeTimeout, and an answer other than a stream within
	// answerTimeout.
	writeTimeout  = 10 * time.Second
	answerTimeout = time.Minute
	chunk         = 64 << 10
)

// pacedWriter writes in chunks. Each chunk has a deadline, before which the client must read it.
type pacedWriter struct {
	w   http.ResponseWriter
	end time.Time // deadline for the whole answer; zero for no deadline
}

func (p *pacedWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		until := after(writeTimeout)
		if !p.end.IsZero() && p.end.Before(until) {
			until = p.end
		}
		limit(p.w, until)
		written, err := p.w.Write(b[:min(chunk, len(b))])
		n += written
		if err != nil {
			return n, err // the client has gone or is too slow
		}
		b = b[written:]
	}
	return n, nil
}

// limit sets the deadline for writes to the client. The zero time means no deadline. If the writer
// has no deadlines, as in tests, limit does nothing.
func limit(w http.ResponseWriter, until time.Time) {
	_ = http.NewResponseController(w).SetWriteDeadline(until)
}

// after returns the current time plus d.
func after(d time.Duration) time.Time {
	return time.Now().Add(d) //nolint:forbidigo // a connection's time is real
}
