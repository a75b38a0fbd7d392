package plegz

import (
	"bytes"
	"errors"
	"net/http"
)

// serveStream sends what is there and then what changes, until the client goes or is too
// slow. A client that comes back says where it was, and gets what has changed since.
func (h *handler) serveStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for a proxy that would collect what is sent
	if r.Method == http.MethodHead {
		return
	}
	limit(w, deadline())
	if err := http.NewResponseController(w).Flush(); err != nil {
		if errors.Is(err, http.ErrNotSupported) {
			http.Error(w, "plegz: this server cannot stream", http.StatusNotImplemented)
		}
		return
	}
	done := h.stream()
	defer done()
	// The server ends the stream with a few bytes more.
	defer func() { limit(w, deadline()) }()
	position := r.Header.Get("Last-Event-ID")
	if position == "" {
		position = r.URL.Query().Get("since")
	}
	for {
		a, news := h.answer(position)
		if write(w, a.message()) != nil {
			return
		}
		position = a.Position
		select {
		case <-r.Context().Done():
			return
		case <-news:
		}
	}
}

// message returns the answer as a server-sent event. JSON has no line breaks.
func (a *answer) message() []byte {
	var b bytes.Buffer
	b.WriteString("retry: 1000\nid: ")
	b.WriteString(a.Position)
	b.WriteString("\ndata: ")
	b.Write(a.json())
	b.WriteString("\n\n")
	return b.Bytes()
}
