package plegz

import (
	"net/http"
	"time"
)

const (
	// writeTimeout is how long a client may take for a chunk, answerTimeout for an answer
	// that is no stream.
	writeTimeout  = 10 * time.Second
	answerTimeout = time.Minute
	chunk         = 64 << 10
)

// pacedWriter writes as long as the client takes some of it in time.
type pacedWriter struct {
	w   http.ResponseWriter
	end time.Time // of all writing; zero for no end
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

// limit sets until when the client has to take what is written; zero for no limit. A writer
// without deadlines, in a test, has none.
func limit(w http.ResponseWriter, until time.Time) {
	_ = http.NewResponseController(w).SetWriteDeadline(until)
}

// after is the time after a while.
func after(d time.Duration) time.Time {
	return time.Now().Add(d) //nolint:forbidigo // a connection's time is real
}
