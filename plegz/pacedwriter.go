package plegz

import (
	"net/http"
	"time"
)

const (
	// A client may take writeTimeout for a chunk, and answerTimeout for an answer other than a stream.
	writeTimeout  = 10 * time.Second
	answerTimeout = time.Minute
	chunk         = 64 << 10
)

// pacedWriter writes in chunks; the client must take each of them in time.
type pacedWriter struct {
	w   http.ResponseWriter
	end time.Time // deadline for all writing; zero for none
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
			return n, err // the client is gone, or too slow
		}
		b = b[written:]
	}
	return n, nil
}

// limit sets the deadline by which the client must take what is written; zero for none. It does
// nothing for a writer without deadlines, as in tests.
func limit(w http.ResponseWriter, until time.Time) {
	_ = http.NewResponseController(w).SetWriteDeadline(until)
}

// after returns the time at which d will have passed.
func after(d time.Duration) time.Time {
	return time.Now().Add(d) //nolint:forbidigo // a connection's time is real
}
