package plegz

import (
	"bufio"
	"errors"
	"net/http"
	"time"
)

// streamBuffer is how many bytes a stream collects before it writes.
const streamBuffer = 16 << 10

// serveStream sends the present state and then changes, until the client leaves or is too slow. A
// client that comes back sends its position, and gets what has changed since.
func (h *handler) serveStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // so that a proxy does not buffer the stream
	if r.Method == http.MethodHead {
		return
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		if errors.Is(err, http.ErrNotSupported) {
			http.Error(w, "plegz: this server cannot stream", http.StatusNotImplemented)
		}
		return
	}
	done := h.stream()
	defer done()
	// The server still writes a few bytes after the stream.
	defer func() { limit(w, after(writeTimeout)) }()
	position := r.Header.Get("Last-Event-ID")
	if position == "" {
		position = r.URL.Query().Get("since")
	}
	buffered := bufio.NewWriterSize(&pacedWriter{w: w}, streamBuffer)
	for {
		a, news := h.answer(position)
		position = a.Position
		a.writeMessage(buffered)
		if buffered.Flush() != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		limit(w, time.Time{}) // no deadline while there is nothing to write
		a = answer{}          // so that forgotten parts of it can be freed
		select {
		case <-r.Context().Done():
			return
		case <-news:
		}
	}
}

// writeMessage writes the answer as a server-sent event. The JSON has no line breaks.
func (a *answer) writeMessage(w *bufio.Writer) {
	_, _ = w.WriteString("retry: 1000\nid: " + a.Position + "\ndata: ")
	a.writeJSON(w)
	_, _ = w.WriteString("\n\n")
}
