package plegz

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kubepleg/pleg"
)

const (
	// maxStreams limits the open streams, and maxAnswers the other requests in progress.
	maxStreams = 64
	maxAnswers = 64
)

// Handler returns a handler that serves the page of a generator and its cache. Without
// WithRecording it starts nothing before the first request. It panics if generator is nil.
//
// The package documentation describes the answers, the permitted clients, and the cost.
func Handler(generator *pleg.GenericPLEG, opts ...Option) http.Handler {
	if generator == nil {
		panic("plegz: Handler needs a generator") //nolint:forbidigo // a mistake in the program
	}
	return &handler{
		recorder: newRecorder(generator, opts),
		streams:  make(chan struct{}, maxStreams), answers: make(chan struct{}, maxAnswers),
	}
}

type handler struct {
	*recorder
	// streams and answers contain one element for each request in progress.
	streams, answers chan struct{}
}

// format is the format of an answer.
type format string

const (
	formatHTML   format = "html"
	formatText   format = "text"
	formatJSON   format = "json"
	formatStream format = "stream"
)

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", page.policy)
	header.Set("Vary", "Accept")
	// The server resets this deadline when the request ends.
	limit(w, after(writeTimeout))
	if why, code := h.refusal(r); why != "" {
		if code == http.StatusMethodNotAllowed {
			header.Set("Allow", "GET, HEAD")
		}
		if r.ContentLength != 0 {
			// Without this deadline, the server would wait for the body before it sends the answer.
			_ = http.NewResponseController(w).SetReadDeadline(aLongTimeAgo)
		}
		http.Error(w, "plegz: "+why, code)
		return
	}
	f := formatOf(r)
	slots := h.answers
	if f == formatStream {
		slots = h.streams
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		header.Set("Retry-After", "5")
		http.Error(w, "plegz: too many requests at once", http.StatusServiceUnavailable)
		return
	}
	switch f {
	case formatHTML:
		send(w, r, "text/html; charset=utf-8", page.document)
	case formatText:
		send(w, r, "text/plain; charset=utf-8", h.document(f))
	case formatJSON:
		send(w, r, "application/json", h.document(f))
	case formatStream:
		h.serveStream(w, r)
	default:
		http.Error(w, "plegz: format is html, text, json or stream", http.StatusBadRequest)
	}
}

// formatOf returns the format that a request asks for.
func formatOf(r *http.Request) format {
	if query := r.URL.Query(); query.Has("format") {
		return format(query.Get("format"))
	}
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		switch media {
		case "text/html":
			return formatHTML
		case "application/json":
			return formatJSON
		case "text/event-stream":
			return formatStream
		case "text/plain":
			return formatText
		}
	}
	return formatText
}

// send sends a document as the answer.
func send(w http.ResponseWriter, r *http.Request, media string, b []byte) {
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if r.Method == http.MethodHead {
		return
	}
	_, _ = (&pacedWriter{w: w, end: after(answerTimeout)}).Write(b)
}

// aLongTimeAgo is a deadline in the past.
var aLongTimeAgo = time.Unix(1, 0)
