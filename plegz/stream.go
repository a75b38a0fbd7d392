package plegz

import (
	"bufio"
	"errors"
	"net/http"
	"time"
)

// streamBuffer is the size of a stream's write buffer in bytes.
const streamBuffer = 16 << 10

// serveStream sends the present state and then changes, until the client leaves or is too slow. If
// a client sends a position when it reconnects, it gets only the changes after that position.
func (h *handler) serveStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // asks proxies not to buffer the stream
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
	// After the stream, the server still writes a few bytes. They need a deadline too.
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
		limit(w, time.Time{}) // no deadline while the stream waits
		a = answer{}          // while the stream waits, a must not keep old items in memory
		select {
		case <-r.Context().Done():
			return
		case <-news:
		}
	}
}

// writeMessage writes the answer as one server-sent event. The JSON contains no line breaks, so it
// fits in one data line.
func (a *answer) writeMessage(w *bufio.Writer) {
	_, _ = w.WriteString("retry: 1000\nid: " + a.Position + "\ndata: ")
	a.writeJSON(w)
	_, _ = w.WriteString("\n\n")
}
