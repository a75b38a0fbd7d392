package plegz

import (
	"bufio"
	"bytes"
	"encoding/json"
	"sync"
	"time"
)

// documents caches the answers as text and as JSON. Each document is made once for all requests
// between two changes, so work and memory do not grow with the number of requests.
type documents struct {
	mu sync.Mutex // held while a document is made
	// made is guarded by mu.
	made map[format]document
}

// document is an answer in one format. body must not be modified.
type document struct {
	position string
	at       time.Time
	body     []byte
}

// staleAfter is the maximum age of a cached document. A document contains ages, and these are not
// updated after the document was made.
const staleAfter = time.Second

// document returns the whole state in a format.
func (r *recorder) document(f format) []byte {
	r.documents.mu.Lock()
	defer r.documents.mu.Unlock()
	now := r.clock.Now()
	position := r.position()
	if d, made := r.documents.made[f]; made && d.position == position && now.Sub(d.at) < staleAfter {
		return d.body
	}
	a, _ := r.answer("")
	d := document{position: a.Position, at: now}
	if f == formatJSON {
		d.body = a.indentedJSON()
	} else {
		d.body = a.text()
	}
	if r.documents.made == nil {
		r.documents.made = make(map[format]document)
	}
	r.documents.made[f] = d
	return d.body
}

// forget drops the cached documents.
func (d *documents) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = nil
}

func (a *answer) indentedJSON() []byte {
	var compact, indented bytes.Buffer
	w := bufio.NewWriter(&compact)
	a.writeJSON(w)
	_ = w.Flush()                                         // writing to a buffer cannot fail
	_ = json.Indent(&indented, compact.Bytes(), "", "  ") // cannot fail: the JSON is valid
	indented.WriteByte('\n')
	return indented.Bytes()
}
